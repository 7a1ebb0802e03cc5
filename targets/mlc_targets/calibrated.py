"""Figures of cores and chips, fitted to 736 published latencies of ncnn
(its benchmark's table, commit a4d2ea1) by scripts/bench/calibration/calibrate.py, which writes
this.
"""

from __future__ import annotations

# Cycles per vector instruction, per load or store, per other one, per line that the first cache
# fetches; nanoseconds per line from memory.
CORES: dict[str, tuple[float, float, float, float, float]] = {
    "cortex-a7": (3.92, 1.26, 0.6265, 9.491, 24.07),
    "cortex-a53": (1.597, 2.016, 0.555, 3.17, 8.292),
    "cortex-a55": (1.277, 3.425, 0.6694, 3.528, 5.808),
    "cortex-a57": (1.065, 0.4065, 0.2637, 7.389, 14.8),
    "cortex-a72": (1.011, 0.3871, 0.2524, 7.759, 14.01),
    "cortex-a73": (1.176, 0.3824, 0.2461, 7.543, 14.46),
    "cortex-a76": (0.5308, 0.3345, 0.1947, 3.434, 4.048),
    "cortex-a78": (0.4442, 0.3766, 0.2353, 3.179, 4.107),
}

# Of a core on a chip, factors: of its times, of nanoseconds per line, of the rate that is reached.
CHIPS: dict[tuple[str, str], tuple[float, float, float]] = {
    ("allwinner-h616", "cortex-a53"): (1.014, 1.001, 0.8841),
    ("amlogic-a311d", "cortex-a73"): (1.029, 1.011, 0.9314),
    ("bcm2711", "cortex-a72"): (1.013, 1.032, 1.196),
    ("bcm2712", "cortex-a76"): (0.9601, 1.059, 0.7279),
    ("bcm2837", "cortex-a53"): (0.9607, 1.015, 1.304),
    ("imx7d", "cortex-a7"): (0.9619, 0.9487, 1.012),
    ("rk3328", "cortex-a53"): (1.042, 1.028, 1.082),
    ("rk3399", "cortex-a53"): (1.047, 1.068, 0.9309),
    ("rk3399", "cortex-a72"): (0.9662, 0.96, 0.9485),
    ("rk3566", "cortex-a55"): (1.09, 1.013, 0.6862),
    ("rk3568", "cortex-a55"): (1.139, 1.043, 0.7202),
    ("rk3588", "cortex-a55"): (0.9266, 0.8495, 1),
    ("rk3588", "cortex-a76"): (1.013, 0.9144, 1.538),
    ("snapdragon410", "cortex-a53"): (0.9838, 1.03, 1.402),
    ("tegra210", "cortex-a57"): (0.9947, 1.026, 1.25),
    ("tegra234", "cortex-a78"): (1.003, 0.9774, 1),
}

REACHED = 0.8244  # of what memory moves for one core: what it does for all
SERIAL = 0.1218  # the part of a layer that threads do not share
JOIN = 48861  # cycles that it takes to start them and to wait for the last
INTERVAL = (0.8064, 1.299)  # held 86% of rows, each board left out
