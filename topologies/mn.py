"""The shapes for the `mn` command:

    sudo mn --custom topologies/mn.py --topo leafspine,2,2,2 --switch ovsbr,stp=1 --controller none --test pingall
    sudo mn --custom topologies/mn.py --topo switchring,4,2 --switch ovsbr,stp=1 --controller none --test pingall

Both have loops and these are learning switches, hence the spanning tree (which takes OVS half a minute).
Where the kernel has no openvswitch module: `--switch ovsbr,stp=1,datapath=user`.  The links are Mininet's own; the
emulated hardware comes with FabricNet.
"""

import inspect
import sys
from pathlib import Path

# `mn` executes this file without telling it where it is, and with a module path of its own.
sys.path.insert(0, str(Path(inspect.getfile(inspect.currentframe())).resolve().parents[1]))  # type: ignore[arg-type]

from topologies.shapes import SHAPES

topos = {name.replace("_", ""): shape for name, shape in SHAPES.items()}
