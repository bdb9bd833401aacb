// A library for native products, or why the tests that need one skip; and libraries that are made
// to be wrong.

import { writeFileSync } from 'node:fs';
import { locateLibrary } from '../../src/backends/cpu/native/locate-library.js';

/** Why native products can't be tested here; undefined where they can. */
export const libraryProblem: string | undefined =
  locateLibrary(undefined).length > 0
    ? undefined
    : (process.env.SHARDWEAVE_NO_BLAS ?? 'no OpenBLAS or Accelerate was found');

/** The machine code of a function, by processor, that returns, and of one that is illegal. */
const CODE = {
  x64: { machine: 62, returns: [0xc3], crashes: [0x0f, 0x0b] },
  arm64: { machine: 183, returns: [0xc0, 0x03, 0x5f, 0xd6], crashes: [0, 0, 0, 0] },
} as const;

/** Whether writeLibrary can make a library for this machine. */
export const canWriteLibrary = process.platform === 'linux' && process.arch in CODE;

/**
 * Writes a shared library with one function that takes nothing and returns or crashes: the least
 * ELF file that a loader takes, of one page that holds header, tables and code.
 */
export function writeLibrary(path: string, name: string, does: 'returns' | 'crashes'): void {
  const code = CODE[process.arch as keyof typeof CODE];
  const file = Buffer.alloc(4096);
  const [programs, dynamic, symbols, strings, hashes, text] = [64, 256, 512, 640, 768, 1024];
  // The file's header: 64 bits, little-endian, a shared object with two program headers.
  file.set([0x7f, 0x45, 0x4c, 0x46, 2, 1, 1]);
  file.writeUInt16LE(3, 16);
  file.writeUInt16LE(code.machine, 18);
  file.writeUInt32LE(1, 20);
  file.writeUInt32LE(programs, 32);
  for (const [at, value] of [
    [52, 64],
    [54, 56],
    [56, 2],
    [58, 64],
  ] as const) {
    file.writeUInt16LE(value, at);
  }
  // All of it is loaded, to be read and run; and the dynamic section is told.
  const segment = (at: number, type: number, start: number, length: number, align: number) => {
    file.writeUInt32LE(type, at);
    file.writeUInt32LE(7, at + 4);
    for (const [offset, value] of [
      [8, start],
      [16, start],
      [24, start],
    ] as const) {
      file.writeUInt32LE(value, at + offset);
    }
    file.writeUInt32LE(length, at + 32);
    file.writeUInt32LE(length, at + 40);
    file.writeUInt32LE(align, at + 48);
  };
  segment(programs, 1, 0, file.length, 4096);
  segment(programs + 56, 2, dynamic, 6 * 16, 8);
  const entries = [
    [4, hashes],
    [5, strings],
    [6, symbols],
    [10, name.length + 2],
    [11, 24],
    [0, 0],
  ];
  entries.forEach(([tag, value], i) => {
    file.writeUInt32LE(tag!, dynamic + 16 * i);
    file.writeUInt32LE(value!, dynamic + 16 * i + 8);
  });
  // The second symbol: a global function in section 1, which is in none of the tables.
  file.writeUInt32LE(1, symbols + 24);
  file[symbols + 28] = 0x12;
  file.writeUInt16LE(1, symbols + 30);
  file.writeUInt32LE(text, symbols + 32);
  file.writeUInt32LE(8, symbols + 40);
  file.write(name, strings + 1);
  // One bucket, in which the chain of two symbols begins with the second.
  file.set(new Uint8Array(Uint32Array.of(1, 2, 1, 0, 0).buffer), hashes);
  file.set(code[does], text);
  writeFileSync(path, file);
}
