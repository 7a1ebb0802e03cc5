"""Figures of cores and chips, fitted to 736 published latencies of ncnn
(its benchmark's table, commit a4d2ea1) by scripts/bench/calibration/calibrate.py, which writes
this.
"""

from __future__ import annotations

# Cycles per vector instruction, per load or store, per other one, per line that the first cache
# fetches; nanoseconds per line from memory.
CORES: dict[str, tuple[float, float, float, float, float]] = {
    "cortex-a7": (3.416, 2.264, 0.7878, 10.44, 19.67),
    "cortex-a53": (1.327, 2.679, 0.6176, 3.199, 8.334),
    "cortex-a55": (1.121, 3.358, 0.6511, 3.365, 6.415),
    "cortex-a57": (0.9767, 0.8163, 0.4099, 6.75, 12.61),
    "cortex-a72": (0.9474, 0.7761, 0.394, 7.191, 12.73),
    "cortex-a73": (1.109, 0.7432, 0.3754, 7.025, 13.41),
    "cortex-a76": (0.5687, 0.4495, 0.239, 2.191, 4.218),
    "cortex-a78": (0.4495, 0.5122, 0.298, 2.13, 3.771),
}

# Of a core on a chip, factors: of its times, of nanoseconds per line, of the rate that is reached.
CHIPS: dict[tuple[str, str], tuple[float, float, float]] = {
    ("allwinner-h616", "cortex-a53"): (0.9981, 0.9991, 1.011),
    ("allwinner-t527", "cortex-a55"): (0.919, 0.9838, 1.095),
    ("amlogic-a311d", "cortex-a73"): (1.045, 1.028, 0.8941),
    ("bcm2711", "cortex-a72"): (1.019, 1.051, 0.9274),
    ("bcm2712", "cortex-a76"): (0.9263, 1.219, 0.497),
    ("bcm2837", "cortex-a53"): (0.9884, 1.041, 1.052),
    ("imx7d", "cortex-a7"): (0.9599, 0.9331, 1.501),
    ("rk3328", "cortex-a53"): (0.9534, 0.935, 0.9282),
    ("rk3399", "cortex-a53"): (1.072, 1.092, 1.158),
    ("rk3399", "cortex-a72"): (0.9826, 0.9463, 1.158),
    ("rk3566", "cortex-a55"): (1.152, 1.061, 0.8094),
    ("rk3568", "cortex-a55"): (1.152, 1.061, 0.8094),
    ("rk3588", "cortex-a55"): (0.9654, 0.8462, 1.416),
    ("rk3588", "cortex-a76"): (0.9955, 0.8262, 1.416),
    ("rz-g2l", "cortex-a55"): (1.109, 1.041, 0.4787),
    ("snapdragon410", "cortex-a53"): (1.02, 1.04, 1.516),
    ("sunrise-x3", "cortex-a53"): (1.017, 1.02, 0.9304),
    ("tegra210", "cortex-a57"): (1.015, 0.9885, 1.072),
    ("tegra234", "cortex-a78"): (0.9938, 0.9372, 1.358),
}

REACHED = 2.352  # of what memory moves for one core: what threads find they share
SERIAL = 0.02812  # the part of a layer that threads do not share
JOIN = 19514  # cycles that it takes to start them and to wait for the last
INTERVAL = (0.826, 1.333)  # held 86% of rows, each board left out
