// CRC-32 (ISO-HDLC, the one of zlib, gzip and PNG), eight bytes at a time by eight tables
// (slicing-by-8, Kounavis and Berry, 2008). It detects every burst of up to 32 wrong bits in a
// piece.

const POLYNOMIAL = 0xedb88320;

/** table[k][b] is the remainder of byte b followed by k zero bytes. */
const TABLES = makeTables();

/**
 * The checksum of `bytes`, or, where `before` is the checksum of earlier bytes, of those followed
 * by `bytes`.
 * @example
 * ```ts
 * import { crc32 } from '@shardweave/checkpoint';
 *
 * const bytes = new TextEncoder().encode('123456789');
 * console.log(crc32(bytes).toString(16)); // logs cbf43926
 * console.log(crc32(bytes.subarray(4), crc32(bytes.subarray(0, 4))) === crc32(bytes)); // logs true
 * ```
 */
export function crc32(bytes: Uint8Array, before = 0): number {
  const [t0, t1, t2, t3, t4, t5, t6, t7] = TABLES as unknown as Eight;
  const { length } = bytes;
  let crc = ~before;
  let at = 0;
  for (; at + 8 <= length; at += 8) {
    crc ^= bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16) | (bytes[at + 3]! << 24);
    crc =
      t7[crc & 0xff]! ^
      t6[(crc >>> 8) & 0xff]! ^
      t5[(crc >>> 16) & 0xff]! ^
      t4[crc >>> 24]! ^
      t3[bytes[at + 4]!]! ^
      t2[bytes[at + 5]!]! ^
      t1[bytes[at + 6]!]! ^
      t0[bytes[at + 7]!]!;
  }
  for (; at < length; at++) {
    crc = t0[(crc ^ bytes[at]!) & 0xff]! ^ (crc >>> 8);
  }
  return ~crc >>> 0;
}

type Eight = readonly [
  Int32Array,
  Int32Array,
  Int32Array,
  Int32Array,
  Int32Array,
  Int32Array,
  Int32Array,
  Int32Array,
];

function makeTables(): readonly Int32Array[] {
  const tables = Array.from({ length: 8 }, () => new Int32Array(256));
  const [first] = tables as [Int32Array];
  for (let byte = 0; byte < 256; byte++) {
    let value = byte;
    for (let bit = 0; bit < 8; bit++) {
      value = (value & 1) === 1 ? (value >>> 1) ^ POLYNOMIAL : value >>> 1;
    }
    first[byte] = value;
  }
  for (let k = 1; k < tables.length; k++) {
    for (let byte = 0; byte < 256; byte++) {
      const value = tables[k - 1]![byte]!;
      tables[k]![byte] = first[value & 0xff]! ^ (value >>> 8);
    }
  }
  return tables;
}
