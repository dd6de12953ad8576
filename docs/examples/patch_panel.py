"""A patch panel: a script of the site switches devices of the pool to hosts, and back."""

import subprocess

from pydantic import Field

from campaign.common.errors import FabricError
from campaign.fabrics.registry import FabricKind, NoOptions
from campaign.fabrics.simple_fabric import SimpleFabric
from campaign.spec.hardware import list_pool_devices


class Options(NoOptions):
    """A patch panel that a script of the site switches."""

    script: str = Field(default="true", description="called with `attach` or `detach`, device and host; or `status`")


class PatchPanel(SimpleFabric):
    kind = "patch-panel"

    def __init__(self, options, hosts, pool, state_dir):
        super().__init__(hosts, list_pool_devices(pool), state_dir)
        self.script = options.script

    def attach(self, device, host, lease_id):
        self.call("attach", device.fabric_id, host)

    def detach(self, device, host, lease_id):
        self.call("detach", device.fabric_id, host)

    def probe(self):
        self.call("status")
        return f"{self.script} status: answered"

    def call(self, *words):
        if subprocess.run([self.script, *words], check=False).returncode:
            raise FabricError(f"{self.script} {' '.join(words)}: failed; see its log")


FABRIC = FabricKind("a patch panel that a script switches", Options, PatchPanel)
