"""KMeans of scikit-learn on blobs. Argument: points."""

import hashlib
import sys

import numpy
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.datasets import make_blobs

points = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
data, truth = make_blobs(points, n_features=16, centers=8, random_state=3)
model = KMeans(8, n_init=1, max_iter=10, random_state=4).fit(data)
small = MiniBatchKMeans(8, n_init=1, max_iter=3, random_state=5).fit(data)
print(hashlib.blake2b(data.tobytes(), digest_size=16).hexdigest())
print(hashlib.blake2b(model.labels_.tobytes(), digest_size=16).hexdigest())
# Threads add in any order: the last digits of a sum are no one's promise.
print(numpy.round(numpy.sort(model.cluster_centers_, axis=0), 6).sum().round(4), round(model.inertia_))
print(len(set(small.labels_.tolist())), [int((truth == n).sum()) for n in range(8)])
