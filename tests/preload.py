"""What the server holds that children are forked from: whatever each would import or make anew.
None of it computes with torch: a fork of a process with live OpenMP threads can hang."""

import gc
import importlib
from dataclasses import make_dataclass

import PIL.Image
import tyro

from campaign.children import import_everything
from harness import draw_small
from quintet import rooms
from quintet.engine.machine import hardware
from quintet.report.script import plotly

gc.disable()  # nothing that is imported here is garbage
import_everything()
for module in (
    "many",
    "numpy.ma",
    "PIL.ImageDraw",
    "rich._emoji_codes",
    "rich.console",
    "rich.table",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
    "torch.profiler._cupti_monitor",
    "torch.utils.serialization",
    "torch.utils.tensorboard",
    "typeguard",
):
    importlib.import_module(module)
PIL.Image.init()
tyro.cli(make_dataclass("Nothing", []), args=[])  # it imports the rest of itself when it is called
plotly()  # compressed for reports, and kept so
draw_small()
hardware.versions("cpu")  # read from the files of six packages, and kept
rooms.names()
gc.set_threshold(50_000, 20, 20)  # as in conftest.py
gc.freeze()  # a child that collects garbage does not visit, and so copy, all of this
gc.enable()
