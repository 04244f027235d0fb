r"""
Topics of a corpus
==================

Singular vectors of a term-document matrix group words that occur together (latent semantic
analysis [1]_). The corpus is made of four topics with their own words, and of words that
all of them have.
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp
from blockvec import svds

# %%
# Each document is about one topic: half of its words are those of the topic.

rng = np.random.default_rng(0)
documents, words, topics = 3000, 5000, 4
topic = rng.integers(0, topics, documents)
common = rng.zipf(1.3, (documents, 60)) % words
own = topic[:, None] * 100 + rng.integers(0, 100, (documents, 60))
columns = np.hstack([common, own]).ravel()
rows = np.repeat(np.arange(documents), 120)
counts = sp.coo_array(
    (np.ones(columns.size), (rows, columns)), shape=(documents, words)
).tocsr()
seen = np.bincount(counts.indices, minlength=words)
A = counts @ sp.diags_array(np.log(documents / np.maximum(seen, 1)))

# %%
# The largest singular values stand for topics, and the others for the words that all share.

result = svds(A, k=12, rng=0, return_info=True)
print(result)
u, s, vh = result

# %%
# Documents of one topic lie in one direction.

figure, ax = plt.subplots(figsize=(5.5, 4.2), layout="constrained")
for number in range(topics):
    ax.plot(*u[topic == number, -4:-2].T, ".", markersize=3, label=f"topic {number + 1}")
ax.set_xlabel("fourth vector")
ax.set_ylabel("third vector")
ax.legend()
plt.show()

# %%
# .. [1] S. Deerwester et al., J. Am. Soc. Inf. Sci. 41, 391 (1990).
