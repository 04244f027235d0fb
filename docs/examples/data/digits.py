r"""
Spectral clustering of handwritten digits
=========================================

Images of digits, joined to those that resemble them, form a graph. Its lowest eigenvectors
place equal digits next to each other, without any labels.

The normalised Laplacian of the graph of neighbours has as many eigenvalues near zero as the
graph has clusters. The rows of its eigenvectors are coordinates, in which a simple method
finds the clusters.
"""

import matplotlib.pyplot as plt
from blockvec import eigsh
from scipy.sparse.csgraph import laplacian
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import kneighbors_graph

# %%
# Each of the 1797 images of 8 x 8 pixels is joined to its ten nearest neighbours.

digits = load_digits()
neighbours = kneighbors_graph(digits.data, n_neighbors=10)
L, degree = laplacian(neighbours + neighbours.T, normed=True, return_diag=True)

# %%
# Ten vectors for ten digits. Divided by the square roots of the degrees, they are those of
# a random walk on the graph.

w, X = eigsh(L, k=10, which="SA", tol=1e-8, convergence="norm", rng=0)
coordinates = X / degree[:, None]
clusters = KMeans(n_clusters=10, n_init=10, random_state=0).fit_predict(coordinates)
score = adjusted_rand_score(digits.target, clusters)
print(f"agreement of clusters and digits (adjusted Rand index): {score:.2f}")

# %%
# Left: two of the coordinates, coloured by the true digits. Right: the mean image of each
# cluster.

figure = plt.figure(figsize=(9.5, 4.2), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(1.1, 1))
ax = left.subplots()
for digit in range(10):
    ax.plot(
        *coordinates[digits.target == digit, 1:3].T, ".", markersize=4, label=str(digit)
    )
ax.set(xlabel="second eigenvector", ylabel="third eigenvector", xticks=[], yticks=[])
ax.legend(ncols=2, fontsize=8, markerscale=2)
for cluster, ax in enumerate(right.subplots(3, 4).flat):
    ax.set_axis_off()
    if cluster < 10:
        ax.imshow(digits.images[clusters == cluster].mean(axis=0), cmap="gray_r")
plt.show()
