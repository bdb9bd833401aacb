// How long one lane takes on slow GPUs, as a model: lanes run beside each other, but a loop within
// a lane runs alone, whatever the chip, and no cut of a grid shortens it. The figures are the upper
// ends of two estimates of an audit of these kernels, which no GPU has confirmed: 5e8 turns of four
// loads and two fma in 10 to 60 s, and 4e6 additions to memory in 2 to 4 s.

/** A load whose address does not wait for the load before it, and the fma that go with it. */
export const LOAD_NS = 30;
/** A load whose address, or whose place in a branch, waits for the one before it. */
export const WAIT_NS = 1000;
