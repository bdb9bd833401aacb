// How long a dispatch takes on a GPU that nobody ran, by a model: published peaks times shares that
// are guessed. So a prediction is a range, from the best of the guesses to the worst.

/** From NVIDIA's data sheets of the SXM modules: processors, and what memory moves in a second. */
export const CHIPS = {
  H100: { processors: 132, peakBytes: 3.35e12 },
  H200: { processors: 132, peakBytes: 4.8e12 },
};
/** The multiply-adds of a processor in a clock, in f32 without matrix units. */
const LANES = 128;

/**
 * The shares of the peak that a full tile of a product and a tile of attention reach. For products
 * RADV's instruction counts give 0.65 before waits that nobody counted, and kernels of this design
 * were measured at 0.67 to 0.72 on another chip. The higher clock is the data sheet's, the lower
 * one that of a chip at its limit of power.
 */
export const GUESSES = {
  likely: { product: 0.55, attention: 0.35, clockGhz: 1.98 },
  best: { product: 0.67, attention: 0.42, clockGhz: 1.98 },
  worst: { product: 0.5, attention: 0.3, clockGhz: 1.755 },
};

/** The share of the memory's peak that streaming kernels reach on earlier chips. */
const MEMORY_SHARE = 0.8;
/** Each invocation has one vector of 16 bytes under way, for as long as a load takes. */
const BYTES_IN_FLIGHT = 16;
const LOAD_SECONDS = 600e-9;
/** The time of a dispatch that depends on the one before it, besides its own work. */
const DISPATCH_SECONDS = 3e-6;
/** The shares that smaller tiles reach, as matmul-hardware.ts estimates them. */
const TILE_SHARES = [
  [/128x128x/, 1],
  [/128x64x/, 0.95],
  [/64x64x8\/8/, 0.85],
  [/64x64x16/, 0.6],
  [/32x32x/, 0.45],
];
/**
 * The workgroups of products and attention that share a processor: 256 invocations with 120
 * registers each, as RADV counts them for another chip, leave no room for a third of 65,536.
 */
const SHARED_BY = 2;
/**
 * The guessed share of a processor's rate that a workgroup reaches which has it for itself, as some
 * have in the last round: between 1/2, where it waits as long as beside another, and 1.
 */
const ALONE = 0.79;
/** Kernels that read their output before they write it. */
const READS_OUTPUT = /accumulate|=out|adam/;

/** What the model is, for reports. */
export const MODEL = `The model: a dispatch takes the longer of computing and moving, and ${DISPATCH_SECONDS * 1e6} us. Computing: the peak, of which a product's full tile and attention reach the guessed shares, and smaller tiles the part of it that the choice of tiles estimates; less what the last round of workgroups leaves idle of the processors, each of which ${SHARED_BY} share, or one that reaches ${ALONE} of their rate. The 384 tiles of a product by a matrix of 768 columns are 1.45 such rounds. Moving: the memory's peak times ${MEMORY_SHARE}, or ${BYTES_IN_FLIGHT} bytes an invocation in ${LOAD_SECONDS * 1e9} ns where they are few.`;

/**
 * The bytes of a dispatch twice: each operand once, as memory sees it, and as the tiles of a
 * product request them from the caches.
 */
export function bytesOf({ kernel, bytesRead, bytesWritten, flops }) {
  const bytes = bytesRead + bytesWritten * (READS_OUTPUT.test(kernel) ? 2 : 1);
  const tile = /shared (\d+)x(\d+)x/.exec(kernel);
  if (!/^matmul/.test(kernel) || tile === null || flops === undefined) {
    return { bytes, tileBytes: bytes };
  }
  const [m, n] = [Number(tile[1]), Number(tile[2])];
  return { bytes, tileBytes: bytesWritten + (flops / 2) * 4 * (1 / m + 1 / n) };
}

/**
 * The longer one of computing and moving, plus the dispatch itself.
 * @param {{ processors: number, peakBytes: number }} chip
 * @param {{ product: number, attention: number, clockGhz: number }} guess
 */
export function secondsOf(dispatch, chip, guess) {
  const { kernel, workgroups, invocations, flops = 0 } = dispatch;
  const share = /^attention/.test(kernel) ? guess.attention : guess.product;
  const tile = TILE_SHARES.find(([name]) => name.test(kernel))?.[1] ?? 1;
  const peakFlops = chip.processors * LANES * 2 * guess.clockGhz * 1e9;
  const full = fullShare(workgroups, chip.processors);
  const computing = flops / (peakFlops * share * tile * full);
  const rate = Math.min(
    chip.peakBytes * MEMORY_SHARE,
    (invocations * BYTES_IN_FLIGHT) / LOAD_SECONDS,
  );
  return Math.max(computing, bytesOf(dispatch).bytes / rate) + DISPATCH_SECONDS;
}

/**
 * The share of the rounds of workgroups in which processors have something to do: 384 workgroups on
 * 132 processors are a round of 264 and one of 120, each of which is alone and takes 0.63 rounds.
 */
function fullShare(workgroups, processors) {
  const slots = processors * SHARED_BY;
  const rest = workgroups % slots;
  const last = rest === 0 ? 0 : rest <= processors ? 1 / SHARED_BY / ALONE : 1;
  return workgroups / slots / (Math.floor(workgroups / slots) + last);
}
