// The operations, with sizes and rates as in nccl-tests. A size S is the number of bytes in the
// larger buffer of one rank. Bus bandwidth is S / time, multiplied by the share of S that has to
// cross a link.

/** All values are f32. */
export const ELEMENT_BYTES = 4;

/**
 * `beside` is the size of the other buffer: 'part' for S / n, 'whole' for S, and 'none' where the
 * operation works in place. `busFactor` is bus bandwidth over algorithm bandwidth, for n ranks.
 */
export const OPERATIONS = {
  'all-gather': { title: 'All-gather', beside: 'part', busFactor: (n) => (n - 1) / n },
  'reduce-scatter': { title: 'Reduce-scatter', beside: 'part', busFactor: (n) => (n - 1) / n },
  'all-reduce': { title: 'All-reduce', beside: 'none', busFactor: (n) => (2 * (n - 1)) / n },
  broadcast: { title: 'Broadcast', beside: 'none', busFactor: () => 1 },
  'send-recv': { title: 'Send and receive, in a ring', beside: 'whole', busFactor: () => 1 },
};

/** The bytes of both buffers of a rank: S rounded to whole parts, and the other one. */
export function bufferBytes(operation, size, worldSize) {
  const { beside } = OPERATIONS[operation];
  if (beside === 'part') {
    const part = Math.max(1, Math.floor(size / worldSize / ELEMENT_BYTES)) * ELEMENT_BYTES;
    return { whole: part * worldSize, beside: part };
  }
  return { whole: size, beside: beside === 'whole' ? size : 0 };
}

/** The bus bandwidth in bytes per second. */
export function busBandwidth(operation, whole, worldSize, ms) {
  return (whole / ms) * 1000 * OPERATIONS[operation].busFactor(worldSize);
}
