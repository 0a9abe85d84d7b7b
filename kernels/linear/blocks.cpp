// Linear layers over weights of 8 or 4 bits with a scale for each 32 inputs, by vectors.

#include "blocks.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

EXPORT(VARIANT(q8_0), (linear<Q8_0, ByVectors>))
EXPORT(VARIANT(q4_0), (linear<Q4_0, ByVectors>))
EXPORT(VARIANT(q4_1), (linear<Q4_1, ByVectors>))

#endif
