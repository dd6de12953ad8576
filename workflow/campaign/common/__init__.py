"""What every room uses: errors, files, paths, words, credentials, processes, accelerators."""
