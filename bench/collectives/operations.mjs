// The operations, as nccl-tests sizes and rates them. A size S is what one rank's larger buffer
// holds; bus bandwidth is S / time times the share of it that has to cross a link.

/** f32 throughout. */
export const ELEMENT_BYTES = 4;

/**
 * `parts`: the buffer beside the one of S bytes; 'part' is S / n, 'whole' S, 'none' in place.
 * `busFactor`: bus over algorithm bandwidth, for n ranks.
 */
export const OPERATIONS = {
  'all-gather': { title: 'All-gather', beside: 'part', busFactor: (n) => (n - 1) / n },
  'reduce-scatter': { title: 'Reduce-scatter', beside: 'part', busFactor: (n) => (n - 1) / n },
  'all-reduce': { title: 'All-reduce', beside: 'none', busFactor: (n) => (2 * (n - 1)) / n },
  broadcast: { title: 'Broadcast', beside: 'none', busFactor: () => 1 },
  'send-recv': { title: 'Send and receive, in a ring', beside: 'whole', busFactor: () => 1 },
};

/** Bytes of both buffers of a rank: S, rounded to whole parts, and the one beside it. */
export function bufferBytes(operation, size, worldSize) {
  const { beside } = OPERATIONS[operation];
  if (beside === 'part') {
    const part = Math.max(1, Math.floor(size / worldSize / ELEMENT_BYTES)) * ELEMENT_BYTES;
    return { whole: part * worldSize, beside: part };
  }
  return { whole: size, beside: beside === 'whole' ? size : 0 };
}

/** Bus bandwidth in bytes a second. */
export function busBandwidth(operation, whole, worldSize, ms) {
  return (whole / ms) * 1000 * OPERATIONS[operation].busFactor(worldSize);
}
