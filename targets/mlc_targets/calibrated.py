"""Figures of cores and chips, fitted to 736 published latencies of ncnn
(its benchmark's table, commit a4d2ea1) by scripts/bench/calibration/calibrate.py, which writes
this.
"""

from __future__ import annotations

# Cycles per vector instruction, per load or store, per other one, per line that the first cache
# fetches; nanoseconds per line from memory.
CORES: dict[str, tuple[float, float, float, float, float]] = {
    "cortex-a7": (3.641, 2.165, 0.8692, 9.309, 19.22),
    "cortex-a53": (1.307, 2.773, 0.5677, 3.285, 8.381),
    "cortex-a55": (1.077, 3.519, 0.5938, 3.48, 6.49),
    "cortex-a57": (0.968, 0.843, 0.3961, 6.861, 12.69),
    "cortex-a72": (0.9472, 0.7987, 0.3815, 7.256, 12.78),
    "cortex-a73": (1.047, 0.7708, 0.3637, 7.307, 13.53),
    "cortex-a76": (0.5436, 0.4647, 0.2295, 2.38, 4.276),
    "cortex-a78": (0.4524, 0.5236, 0.2864, 2.231, 3.778),
}

# Of a core on a chip, factors: of its times, of nanoseconds per line, of the rate that is reached.
CHIPS: dict[tuple[str, str], tuple[float, float, float]] = {
    ("allwinner-h616", "cortex-a53"): (0.9983, 0.9992, 1.009),
    ("allwinner-t527", "cortex-a55"): (0.9201, 0.9845, 1.09),
    ("amlogic-a311d", "cortex-a73"): (1.062, 1.03, 0.9078),
    ("bcm2711", "cortex-a72"): (1.016, 1.05, 0.9224),
    ("bcm2712", "cortex-a76"): (0.9378, 1.226, 0.5027),
    ("bcm2837", "cortex-a53"): (0.9887, 1.04, 1.051),
    ("imx7d", "cortex-a7"): (0.947, 0.9343, 1.488),
    ("rk3328", "cortex-a53"): (0.9539, 0.9347, 0.9273),
    ("rk3399", "cortex-a53"): (1.072, 1.092, 1.155),
    ("rk3399", "cortex-a72"): (0.9789, 0.946, 1.155),
    ("rk3566", "cortex-a55"): (1.155, 1.062, 0.8093),
    ("rk3568", "cortex-a55"): (1.155, 1.062, 0.8093),
    ("rk3588", "cortex-a55"): (0.9704, 0.8459, 1.423),
    ("rk3588", "cortex-a76"): (1.007, 0.8245, 1.423),
    ("rz-g2l", "cortex-a55"): (1.109, 1.042, 0.4771),
    ("snapdragon410", "cortex-a53"): (1.021, 1.04, 1.514),
    ("sunrise-x3", "cortex-a53"): (1.018, 1.02, 0.9296),
    ("tegra210", "cortex-a57"): (1.013, 0.9889, 1.069),
    ("tegra234", "cortex-a78"): (0.9844, 0.9342, 1.347),
}

REACHED = 2.357  # of what memory moves for one core: what threads find they share
SERIAL = 0.02813  # the part of a layer that threads do not share
JOIN = 19434  # cycles that it takes to start them and to wait for the last
INTERVAL = (0.827, 1.349)  # held 86% of rows, each board left out
