// The result of transcriptHash on every transport, by world size. Another number means other
// results of the same calls: another order of addition, another rounding, or other patterns.

/**
 * The result that `transcriptHash` must have on every transport, by world size: a hash of the
 * outputs of a fixed list of calls, so that all transports have the same bits.
 */
export const TRANSCRIPT_HASHES: Readonly<Record<number, number>> = {
  1: 0xd353eb2e,
  2: 0x4716ef7b,
  3: 0xc8341a57,
  4: 0x2ae17215,
  8: 0x0dd1900a,
};
