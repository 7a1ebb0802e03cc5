"""Post-training quantization: from a float ONNX model to a quantized one.

    file --prepare--> Net --calibrate--> ranges --api: mend, costs, budget--> layers --insert--> QDQ

net        the model's nodes, constants and layers
prepare    reads the model; folds scales and shifts after layers into their weights
data       calibration data from files, folders, images, functions
ranges     ranges of integers, by four rules; calibrate: the best rule for each tensor
insert     the int8 form of chosen layers; dynamic, weights: forms without calibration
agreement  scores a model; search: the layers that keep the budget
costs      executed instructions on a target
run        runs of the reference evaluator
api        `quantize` and its result
"""
