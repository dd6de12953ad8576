"""One subpackage for each vendor's control plane: what it shows, and the requests that attach and detach."""
