"""Post-training quantization: from a float ONNX model to one of small integers.

    file --prepare--> Net --calibrate--> ranges --api: mend, costs, budget--> layers --insert--> QDQ

net        the model's nodes, constants and layers
prepare    read it; fold what follows layers into their weights
data       calibration data from files, folders, images, functions
ranges     what integers cover, by four rules; calibrate: which rule serves a tensor
insert     the int8 form of chosen layers; dynamic, weights: forms without calibration
agreement  how well a model does; search: the layers that keep the budget
costs      executed instructions on a target
api        quantize, and what it says of its result
"""
