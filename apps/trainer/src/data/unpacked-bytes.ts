// The bytes in a compressed file, made of its own as they come and never all in memory.

import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { constants, createGunzip, gunzipSync } from 'node:zlib';
// Node has its own from 22.15 on; this one reads Parquet as well, so that it is there in any case.
import { Decompress } from 'fzstd';
import { UsageError } from '../errors.js';

/** How a file is compressed. */
export type Packing = 'gzip' | 'zstd';

/** What is unpacked at once may be a thousand times as much, so little is. */
const PUSH_BYTES = 2 ** 16;
const CHUNK_BYTES = 2 ** 20;

/** Packings by the first bytes of files, as Latin-1. */
const PACKINGS: Readonly<Record<Packing, string>> = {
  gzip: '\x1f\x8b',
  zstd: '\x28\xb5\x2f\xfd',
};

/** How a file is compressed by its first bytes; undefined for another one. */
export function packingOf(head: Uint8Array): Packing | undefined {
  const text = Buffer.from(head).toString('latin1');
  return text.startsWith(PACKINGS.gzip)
    ? 'gzip'
    : text.startsWith(PACKINGS.zstd)
      ? 'zstd'
      : undefined;
}

/** The name of a compressed file without the ending that says so, such as `a.csv` of `a.csv.gz`. */
export function unpackedName(file: string): string {
  return file.replace(/\.(gz|zst)$/i, '');
}

/**
 * What the first bytes of a compressed file unpack to.
 * @throws what unpacks them reports where they are damaged
 */
export function unpackedHead(bytes: Buffer, packing: Packing): Buffer {
  if (packing === 'gzip') {
    return gunzipSync(bytes, { finishFlush: constants.Z_SYNC_FLUSH });
  }
  const made: Uint8Array[] = [];
  new Decompress((chunk) => made.push(chunk)).push(bytes);
  return Buffer.concat(made);
}

/**
 * What is in a compressed file; several that were put together are one.
 * @throws {UsageError} where the bytes are damaged, or end too early
 */
export async function* unpackedBytes(
  chunks: AsyncIterable<Buffer>,
  {
    packing,
    file,
    flag,
  }: { readonly packing: Packing; readonly file: string; readonly flag: string },
): AsyncGenerator<Buffer> {
  try {
    yield* packing === 'gzip' ? gunzipped(chunks) : unzstd(chunks);
  } catch (cause) {
    // Those of the system, and what the file's own reader has said.
    if (cause instanceof UsageError || (cause as NodeJS.ErrnoException).syscall !== undefined) {
      throw cause;
    }
    throw new UsageError(
      `${flag}: ${file} is compressed (${packing}), and can't be unpacked (${(cause as Error).message}). Get the file anew, or unpack it first and give the file that comes of it.`,
      { cause },
    );
  }
}

async function* gunzipped(chunks: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  const unpacker = createGunzip({ chunkSize: CHUNK_BYTES });
  const fed = pipeline(Readable.from(chunks), unpacker);
  fed.catch(() => undefined); // whoever reads is told
  yield* unpacker as AsyncIterable<Buffer>;
  await fed;
}

async function* unzstd(chunks: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let made: Buffer[] = [];
  const unpacker = new Decompress((bytes) => {
    made.push(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength));
  });
  const taken = () => {
    const all = made;
    made = [];
    return all.filter(({ length }) => length > 0);
  };
  for await (const chunk of chunks) {
    for (let start = 0; start < chunk.length; start += PUSH_BYTES) {
      unpacker.push(chunk.subarray(start, start + PUSH_BYTES));
      yield* taken();
    }
  }
  unpacker.push(new Uint8Array(0), true);
  yield* taken();
}
