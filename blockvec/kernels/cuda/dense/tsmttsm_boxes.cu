// tsmttsm_mma.cu for operands whose rows lie apart: the copy engine gathers them by tensor maps.
//
// Chunk t of a stage has the rows t, t + 4, t + 8 ... of the stage: they are 4 ld elements apart, a multiple of 16 bytes whatever the
// type and ld, and all begin at the same offset modulo 16, which a lane adds to its address. A chunk is one box, whose base the copy engine
// wants aligned to 128 bytes. Its rows are odd multiples of 32 bytes, padded with zeros that cost no traffic, and lane (g, t) reads row
// i + t modulo 4 of every four: free of bank conflicts, since the four rows begin 32 bytes apart modulo 128. The order of rows is that of A and of B.
#define WITH_BOXES
#include "dense/tsmttsm_mma.cu"
