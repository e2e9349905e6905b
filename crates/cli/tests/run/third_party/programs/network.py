"""A small convolutional network of TensorFlow, trained on made-up pictures. Arguments: pictures, epochs.

One thread and deterministic operations: two runs print the same digits.
"""

import os
import sys

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0", CUDA_VISIBLE_DEVICES="")
import numpy
import tensorflow as tf

pictures = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 2
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.keras.utils.set_random_seed(6)
tf.config.experimental.enable_op_determinism()
random = numpy.random.default_rng(7)
labels = random.integers(0, 4, pictures)
data = random.random((pictures, 32, 32, 1), dtype=numpy.float32)
for index, label in enumerate(labels):
    data[index, (label // 2) * 16 :][:16, (label % 2) * 16 :][:, :16] += 0.5
layers = tf.keras.layers
model = tf.keras.Sequential(
    [
        layers.Input((32, 32, 1)),
        layers.Conv2D(16, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, activation="relu"),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(4, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(data, labels, batch_size=64, epochs=epochs, verbose=0).history
print([f"{loss:.6f}" for loss in history["loss"]], [f"{part:.4f}" for part in history["accuracy"]])
print(f"{float(numpy.sum(model.predict(data, verbose=0)[:, 0])):.4f}")
