"""Figures of cores and chips, fitted to 736 published latencies of ncnn
(its benchmark's table, commit a4d2ea1) by scripts/bench/calibration/calibrate.py, which writes
this.
"""

from __future__ import annotations

# Cycles per vector instruction, per load or store, per other one, per line that the first cache
# fetches; nanoseconds per line from memory.
CORES: dict[str, tuple[float, float, float, float, float]] = {
    "cortex-a7": (3.89, 1.395, 0.6644, 10.19, 18.23),
    "cortex-a53": (1.547, 2.144, 0.5746, 3.859, 7.179),
    "cortex-a55": (1.188, 3.475, 0.6854, 4.256, 5.553),
    "cortex-a57": (1.09, 0.3953, 0.2646, 7.95, 11.94),
    "cortex-a72": (1.002, 0.3787, 0.2552, 8.722, 12.47),
    "cortex-a73": (1.196, 0.3749, 0.2485, 8.312, 13.06),
    "cortex-a76": (0.5475, 0.3427, 0.2106, 3.218, 2.999),
    "cortex-a78": (0.4564, 0.3867, 0.2597, 3.041, 3.003),
}

# Of a core on a chip, factors: of its times, of nanoseconds per line, of the rate that is reached.
CHIPS: dict[tuple[str, str], tuple[float, float, float]] = {
    ("allwinner-h616", "cortex-a53"): (1.01, 1.005, 0.9403),
    ("allwinner-t527", "cortex-a55"): (0.9246, 0.9588, 1.241),
    ("amlogic-a311d", "cortex-a73"): (1.023, 1.031, 1.047),
    ("bcm2711", "cortex-a72"): (1.013, 1.042, 1.042),
    ("bcm2712", "cortex-a76"): (0.9654, 1.059, 0.5583),
    ("bcm2837", "cortex-a53"): (0.977, 1.022, 1.104),
    ("imx7d", "cortex-a7"): (0.9794, 0.939, 1.317),
    ("rk3328", "cortex-a53"): (0.9876, 0.9749, 0.9197),
    ("rk3399", "cortex-a53"): (1.063, 1.078, 1.174),
    ("rk3399", "cortex-a72"): (0.9636, 0.961, 1.174),
    ("rk3566", "cortex-a55"): (1.143, 1.078, 0.885),
    ("rk3568", "cortex-a55"): (1.143, 1.078, 0.885),
    ("rk3588", "cortex-a55"): (0.9571, 0.8485, 1.081),
    ("rk3588", "cortex-a76"): (1.036, 0.8984, 1.081),
    ("rz-g2l", "cortex-a55"): (1.102, 1.04, 0.4969),
    ("snapdragon410", "cortex-a53"): (0.9973, 1.018, 1.448),
    ("sunrise-x3", "cortex-a53"): (0.9971, 1.007, 0.9744),
    ("tegra210", "cortex-a57"): (0.9939, 0.974, 1.113),
    ("tegra234", "cortex-a78"): (1.008, 0.9523, 1.225),
}

REACHED = 2.657  # of what memory moves for one core: what threads find they share
SERIAL = 0.02699  # the part of a layer that threads do not share
JOIN = 19000  # cycles that it takes to start them and to wait for the last
INTERVAL = (0.8041, 1.304)  # held 86% of rows, each board left out
