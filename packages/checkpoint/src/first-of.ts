// Reads files that lie in several places, such as the directories of machines that each saved their
// own part.

import { CheckpointMissingError } from './errors.js';
import type { PieceReader } from './piece-store.js';

/**
 * Reads each file from the first of `readers` that has it. The readers are asked one after another.
 */
export function firstOf(...readers: readonly PieceReader[]): PieceReader {
  const find = async (file: string) => {
    for (const reader of readers) {
      const byteLength = await reader.byteLength(file);
      if (byteLength !== undefined) {
        return { reader, byteLength };
      }
    }
    return undefined;
  };
  const description = readers.map((reader) => reader.description).join(', ');
  const crc32 = readers.find((reader) => reader.crc32 !== undefined)?.crc32;
  return {
    description,
    byteLength: async (file) => (await find(file))?.byteLength,
    read: async (file, into, options) => {
      const found = await find(file);
      if (found === undefined) {
        throw new CheckpointMissingError(`read: expected '${file}' in ${description}, got none.`);
      }
      await found.reader.read(file, into, options);
    },
    ...(crc32 === undefined ? {} : { crc32 }),
  };
}
