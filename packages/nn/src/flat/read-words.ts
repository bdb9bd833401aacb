// Bytes of 16-bit elements from devices, which read whole words.

/**
 * Reads bytes [start, end) by `read`, which is asked for whole words alone. No more than the words
 * around them are read.
 */
export async function readWords(
  read: (byteOffset: number, byteLength: number) => Promise<Uint8Array>,
  start: number,
  end: number,
): Promise<Uint8Array> {
  const from = Math.floor(start / 4) * 4;
  const words = await read(from, Math.ceil((end - from) / 4) * 4);
  return words.subarray(start - from, end - from);
}
