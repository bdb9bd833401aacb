// Every rank writes what it holds, so nothing is ever whole on one of them: safetensors files of its
// own, and at the end one index over all. Any world size loads it: load-shards.ts.

import { byteSize } from '@shardweave/dtypes';
import { type HostTensor, type Optimizer, readSafetensors, writeSafetensors } from '@shardweave/nn';
import { FLAT_ALIGN_ELEMENTS, type FlatStateBytes } from '@shardweave/nn/flat';
import { type DType, elementCountOf, type Shape } from '@shardweave/tensor-core';
import { FsdpConfigError, FsdpStateDictError } from '../errors.js';
import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';
import { agreedHeader } from '../state/gather-flat-state.js';
import { groupsOf, namesFor } from '../state/optim-state-dict.js';
import { bufferEntry } from '../state/state-dict.js';
import { agree } from '../tree/agree.js';
import { collectiveCall, noteShards } from '../tree/collective-call.js';
import { exchangeText } from '../tree/exchange-text.js';
import { pieceOf } from '../unit/shard-layout.js';
import type { ShardedUnit } from '../unit/sharded-unit.js';
import { type KeyedUnit, keyedUnits } from './keyed-units.js';
import {
  indexKey,
  type SavedPiece,
  type SavedTensor,
  type ShardIndex,
  type ShardSink,
  stateKey,
} from './shard-index.js';

export interface SaveShardsOptions {
  /** Its state is saved too. */
  // biome-ignore lint/suspicious/noExplicitAny: an optimizer of any options
  readonly optimizer?: Optimizer<any>;
  /** Put before every file's name, for example 'step-100/'. Default ''. */
  readonly prefix?: string;
  /** Bytes of a file, as far as one run of 128 elements allows. Default 256 MiB. */
  readonly maxFileBytes?: number;
  /** Kept in the index: JSON. */
  readonly extra?: Readonly<Record<string, unknown>>;
}

// The host holds two such files at once: the pieces and the file made of them.
const DEFAULT_MAX_FILE_BYTES = 256 * 2 ** 20;

/**
 * Writes parameters and, if asked, optimizer state as each rank holds them, and buffers from the
 * first. The index comes last, so a save that did not end is none. Collective; the hosts hold two
 * files at most, devices nothing more. Of several replicas the first writes.
 * @param sink this rank's; ranks may share a directory, their files have names of their own
 * @throws {FsdpStateError} unless idle; what a sink throws, on all ranks
 */
export async function saveShards(
  fsdp: FullyShardedDataParallel,
  sink: ShardSink,
  options: SaveShardsOptions = {},
): Promise<void> {
  const { maxFileBytes } = options;
  if (maxFileBytes !== undefined && !(maxFileBytes > 0)) {
    throw new FsdpConfigError(
      `saveShards: expected maxFileBytes to be a number above 0, got ${maxFileBytes}.`,
    );
  }
  const call = { operation: 'saveShards', states: ['idle'] } as const;
  await collectiveCall(fsdp, call, () => writeShards(fsdp, sink, options));
}

async function writeShards(
  fsdp: FullyShardedDataParallel,
  sink: ShardSink,
  options: SaveShardsOptions,
): Promise<void> {
  const { processGroup } = fsdp;
  const { prefix = '', maxFileBytes = DEFAULT_MAX_FILE_BYTES } = options;
  const rank = `${prefix}rank-${processGroup.rank}-of-${processGroup.worldSize}`;
  const writer = new PieceWriter(sink, {
    name: rank,
    maxFileBytes,
    isWriting: fsdp.isFirstReplica,
  });
  const checkShards = noteShards(fsdp, 'saveShards');
  const units = await keyedUnits(fsdp, { operation: 'saveShards' });
  const state = await agree(fsdp, 'saveShards', async (share) => {
    const steps = await writePieces(fsdp, writer, { units, optimizer: options.optimizer, share });
    await writer.flush();
    checkShards();
    return steps;
  });
  const texts = await exchangeText(processGroup, JSON.stringify([writer.written, state]), {
    operation: 'saveShards',
  });
  await agree(fsdp, 'saveShards', async () => {
    if (!fsdp.isFirstRank) {
      return;
    }
    const index = makeIndex(fsdp, texts, options);
    await sink.write(indexKey(prefix), new TextEncoder().encode(JSON.stringify(index)));
  });
}

type Steps = Record<string, { step: number; tensors: readonly string[] }>;

/** Writes all pieces of this rank; returns the steps of the parameters it has state of. */
async function writePieces(
  fsdp: FullyShardedDataParallel,
  writer: PieceWriter,
  options: {
    readonly units: readonly KeyedUnit[];
    readonly optimizer: SaveShardsOptions['optimizer'];
    share<T>(collective: () => Promise<T>): Promise<T>;
  },
): Promise<Steps> {
  const { units, optimizer, share } = options;
  const stepped = new Set(optimizer === undefined ? [] : namesFor(fsdp, optimizer).keys());
  const steps: Steps = {};
  for (const { unit, keys, isWriting } of units) {
    const { dtype } = unit.flat;
    const readMaster = (offset: number, length: number) => unit.readMaster(offset, length);
    for (const [index, key] of isWriting ? keys.entries() : []) {
      await writer.addPiece({ unit, index, key, dtype, read: readMaster });
    }
    if (optimizer === undefined) {
      continue;
    }
    const own = await optimizer.readFlatState(unit.flat);
    const header = await share(() => agreedHeader(unit, own, 'saveShards'));
    if (header === undefined) {
      continue;
    }
    for (const [index, name] of keys.entries()) {
      if (!stepped.has(unit.parameters[index]!.tensor)) {
        continue;
      }
      steps[name] = { step: header.step, tensors: header.names };
      for (const part of isWriting ? header.names : []) {
        const read = async (offset: number, length: number) =>
          stateBytes(own, part, { offset, length });
        await writer.addPiece({ unit, index, key: stateKey(name, part), dtype: 'f32', read });
      }
    }
  }
  if (fsdp.isFirstRank) {
    for (const [name, buffer] of fsdp.namedBuffers()) {
      const entry = await bufferEntry(buffer);
      await writer.add(name, { ...entry, start: 0 });
    }
  }
  return steps;
}

/** Ranks whose part was never trained have zeros. */
function stateBytes(
  own: FlatStateBytes | undefined,
  part: string,
  { offset, length }: { readonly offset: number; readonly length: number },
): Uint8Array {
  return own?.tensors.get(part)?.subarray(offset, offset + length) ?? new Uint8Array(length);
}

function makeIndex(
  fsdp: FullyShardedDataParallel,
  texts: readonly string[],
  { optimizer, extra = {} }: SaveShardsOptions,
): ShardIndex {
  const tensors = new Map<string, { dtype: DType; shape: Shape; pieces: SavedPiece[] }>();
  const state: Steps = {};
  for (const text of texts) {
    const [written, steps] = JSON.parse(text) as [WrittenPiece[], Steps];
    Object.assign(state, steps);
    for (const { key, dtype, shape, ...piece } of written) {
      if (!tensors.has(key)) {
        tensors.set(key, { dtype, shape, pieces: [] });
      }
      tensors.get(key)!.pieces.push(piece);
    }
  }
  for (const [name, { pieces }] of tensors) {
    pieces.sort((a, b) => a.start - b.start);
    checkApart(name, pieces);
  }
  const saved = optimizer && {
    state,
    paramGroups: groupsOf(optimizer, namesFor(fsdp, optimizer)) as never,
  };
  return {
    format: 'shardweave-shards',
    version: 1,
    worldSize: fsdp.processGroup.worldSize,
    tensors: Object.fromEntries(tensors) satisfies Record<string, SavedTensor>,
    optimizer: saved,
    extra,
  };
}

/** Whoever reads a range takes the first piece that has it, so a second one would be lost. */
function checkApart(name: string, pieces: readonly SavedPiece[]): void {
  for (const [index, piece] of pieces.entries()) {
    const next = pieces[index + 1];
    if (next === undefined || piece.end <= next.start) {
      continue;
    }
    throw new FsdpStateDictError(
      `saveShards: expected each element of '${name}' from one rank, got [${piece.start}, ${piece.end}) in '${piece.file}' and [${next.start}, ${next.end}) in '${next.file}'. Groups of ranks that hold different parameters need instances of their own, alike on all ranks.`,
    );
  }
}

// ---- files -------------------------------------------------------------------------------------

interface WrittenPiece extends SavedPiece {
  readonly key: string;
  readonly dtype: DType;
  readonly shape: Shape;
}

interface Piece extends HostTensor<DType> {
  /** Its first element in the tensor; `shape` is the whole tensor's. */
  readonly start: number;
}

/** Collects pieces and writes a file whenever one is full. */
class PieceWriter {
  readonly written: WrittenPiece[] = [];
  readonly #sink: ShardSink;
  readonly #name: string;
  readonly #maxFileBytes: number;
  readonly #isWriting: boolean;
  #pending: (Piece & { readonly key: string })[] = [];
  #pendingBytes = 0;
  #numFiles = 0;

  constructor(
    sink: ShardSink,
    options: { readonly name: string; readonly maxFileBytes: number; readonly isWriting: boolean },
  ) {
    this.#sink = sink;
    this.#name = options.name;
    this.#maxFileBytes = options.maxFileBytes;
    this.#isWriting = options.isWriting;
  }

  /** Adds this rank's part of one parameter of a unit, cut where a file is full. */
  async addPiece(options: {
    readonly unit: ShardedUnit;
    readonly index: number;
    readonly key: string;
    readonly dtype: DType;
    /** Bytes of this rank's shard. */
    read(byteOffset: number, byteLength: number): Promise<Uint8Array>;
  }): Promise<void> {
    const { unit, index, key, dtype, read } = options;
    const { layout, rank } = unit;
    const { shape } = unit.parameters[index]!.tensor;
    const piece = pieceOf(layout, index, rank);
    const first = rank * layout.shardLength - layout.offsets[index]!;
    const elementBytes = byteSize(dtype);
    for (let at = piece.start; at < piece.end; ) {
      const room = Math.max(0, this.#maxFileBytes - this.#pendingBytes) / elementBytes;
      const run = Math.max(1, Math.floor(room / FLAT_ALIGN_ELEMENTS)) * FLAT_ALIGN_ELEMENTS;
      const end = Math.min(piece.end, at + run);
      const byteLength = (end - at) * elementBytes;
      const words = Math.ceil(byteLength / 4) * 4; // devices read whole words
      const bytes = await read(at * elementBytes, words);
      await this.add(key, { dtype, shape, start: first + at, data: bytes.subarray(0, byteLength) });
      at = end;
    }
  }

  async add(key: string, piece: Piece): Promise<void> {
    if (!this.#isWriting) {
      return;
    }
    this.#pending.push({ key, ...piece });
    this.#pendingBytes += piece.data.byteLength;
    if (this.#pendingBytes >= this.#maxFileBytes) {
      await this.flush();
    }
  }

  async flush(): Promise<void> {
    if (this.#pending.length === 0) {
      return;
    }
    const key = `${this.#name}.${this.#numFiles++}.safetensors`;
    const named = this.#pending.map((piece) => [nameOf(piece), piece] as const);
    const file = writeSafetensors(
      new Map(
        named.map(([name, { dtype, shape, data }]) => {
          const isWhole = data.byteLength === elementCountOf(shape) * byteSize(dtype);
          return [
            name,
            { dtype, shape: isWhole ? shape : [data.byteLength / byteSize(dtype)], data },
          ];
        }),
      ),
      { metadata: { format: 'shardweave-shards' } },
    );
    const { tensors } = readSafetensors(file);
    for (const [name, { key: tensor, dtype, shape, start, data }] of named) {
      const end = start + data.byteLength / byteSize(dtype);
      const byteOffset = tensors.get(name)!.data.byteOffset;
      this.written.push({ key: tensor, dtype, shape, start, end, file: key, byteOffset });
    }
    this.#pending = [];
    this.#pendingBytes = 0;
    await this.#sink.write(key, file);
  }
}

/** A whole tensor has its own name, so any reader of safetensors finds it. */
function nameOf({ key, start, shape, dtype, data }: Piece & { readonly key: string }): string {
  const count = data.byteLength / byteSize(dtype);
  return count === elementCountOf(shape) ? key : `${key}[${start}:${start + count}]`;
}
