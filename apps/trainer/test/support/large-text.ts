// Writes texts of any size for tests of what a text may be.

import { closeSync, openSync, writeSync } from 'node:fs';
import { splitMix32 } from '../../src/seeded-random.js';

const WORDS =
  'the of and a to in is that it was he for on are with as his they at be this from have or by one had not but what all were when we there can an your which their said if do will each about how up out them then she many some so these would other into has more two like him see time could no make than first been its who now people my made over did down only way find use may water long little very after words called just where most know'.split(
    ' ',
  );
const ENDS = ['.\n', '.\r\n', ';\n', ',\n', '\n\n', '}\r\n', ' \u2014\n', '\u3002\n'];
const BLOCK_BYTES = 2 ** 24;

/** Writes a text of some 16 MiB of random lines, repeated until the file has so many bytes. */
export function writeLargeText(path: string, bytes: number): void {
  const random = splitMix32(1, 0);
  const draw = <T>(from: readonly T[]) => from[random() % from.length]!;
  const lines: string[] = [];
  for (let length = 0; length < Math.min(bytes, BLOCK_BYTES); ) {
    const words = Array.from({ length: 4 + (random() % 20) }, () =>
      random() % 9 === 0 ? String(random() % 5000) : draw(WORDS),
    );
    const line = `${words.join(' ')}${draw(ENDS)}`;
    lines.push(line);
    length += Buffer.byteLength(line);
  }
  const block = Buffer.from(lines.join(''));
  const file = openSync(path, 'w');
  for (let done = 0; done < bytes; ) {
    done += writeSync(file, block.subarray(0, bytes - done));
  }
  closeSync(file);
}
