// One SHA-256 of a model and its optimizer, whatever wraps the model and on however many ranks:
// names, shapes, dtypes and elements decide it, and where those rest does not. See Note [leaves of
// a hash].

import { type HeldPiece, type Save, type TensorSpec, tensorKey } from '@shardweave/checkpoint';
import { pow64 } from '@shardweave/dtypes/float64';
import { byteSize } from '@shardweave/tensor-core';
import { checkOptions, FLAG, FUNCTION, type OptionRules, optional } from '../check-options.js';
import { NnConfigError } from '../errors.js';
import { HashRow, LEAF_ELEMENTS, leafDigests, type Sha256 } from './hash-tree.js';
import { type AnyOptimizer, OPTIMIZER } from './held-flats.js';
import { type Models, whileAtRest } from './model-at-rest.js';
import { byPieces, savedModule, sharingOf } from './saved-module.js';

/** Options of hashModel: what is hashed, and by what. */
export interface HashModelOptions {
  /** The optimizer whose state and steps are hashed too. Default none. */
  readonly optimizer?: AnyOptimizer;
  /** Leaves frozen parameters out, such as the base of adapters. Default false. */
  readonly onlyTrained?: boolean;
  /**
   * What computes SHA-256. Default WebCrypto, which pages have over https and from localhost. In
   * Node `(bytes) => hash('sha256', bytes, 'buffer')` of node:crypto needs no threads.
   */
  readonly sha256?: Sha256;
}

const RULES: OptionRules<HashModelOptions> = {
  optimizer: optional(OPTIMIZER),
  onlyTrained: optional(FLAG),
  sha256: optional(FUNCTION),
};

/** The leaves that are read at once: 1 MiB in f32. */
const READ_LEAVES = 256;
/** The first byte of what the root is the hash of; leaves and nodes have others. */
const ROOT = 2;

/**
 * Computes the SHA-256 of parameters, buffers and, if asked, optimizer state, with the same result
 * on all ranks. It is equal for equal values under every wrapper and at every world size: floats
 * count in the dtype in which they rest, which is f32 under mixed precision. The options of the
 * optimizer's groups, such as its rate, are not in it. All ranks that hold the model call it; each
 * hashes what it has, and digests are exchanged. It waits for the device, and 1 MiB is on the host
 * at once; where state rests in a store, one flat parameter's state besides.
 * @returns 64 hexadecimal digits
 * @throws {NnConfigError} where there is no WebCrypto and no other `sha256` is given
 * @throws what saveCheckpoint throws, but for what stores do
 */
export async function hashModel(models: Models, options: HashModelOptions = {}): Promise<string> {
  const call = byPieces('hashModel');
  checkOptions(call.operation, options, RULES);
  const { sha256 = webCrypto() } = options;
  return whileAtRest(models, call, async (held) => {
    const { ranks } = held;
    const text = await ranks.agree(call.operation, async () => {
      const saved = savedModule(held, options, { hasBuffers: ranks.isFirst });
      const tensors: HashedPart[] = [];
      for await (const piece of saved.pieces(sharingOf(held))) {
        tensors.push(await hashPiece(piece, sha256));
      }
      held.requireUnchanged();
      const record = saved.optimizerRecord();
      return JSON.stringify({ kind: record?.kind, steps: record?.steps ?? {}, tensors });
    });
    const texts = await ranks.exchange(call.operation, text);
    return rootOf(
      texts.map((own) => JSON.parse(own) as HashedRank),
      sha256,
    );
  });
}

/**
 * Computes the hash that hashModel gives of what was saved, and checks every piece on the way. One
 * piece of the save and 1 MiB are in memory at once.
 * @throws {CheckpointCorruptError} for a file that is missing, too short or damaged
 * @throws {NnConfigError} as hashModel does without WebCrypto
 */
export async function hashSave(
  save: Save,
  options: Pick<HashModelOptions, 'sha256'> = {},
): Promise<string> {
  checkOptions('hashSave', options, { sha256: RULES.sha256 });
  const { sha256 = webCrypto() } = options;
  const tensors: HashedPart[] = [];
  for (const { pieces: _, ...spec } of save.tensors.values()) {
    const read = async (start: number, end: number, into: Uint8Array) => {
      const write = (at: number, bytes: Uint8Array) =>
        into.set(bytes, (at - start) * byteSize(spec.dtype));
      await save.fill([{ ...spec, start, end, write }]);
      return into;
    };
    tensors.push(await hashPiece({ ...spec, start: 0, end: sizeOf(spec.shape), read }, sha256));
  }
  const { kind, steps = {} } = save.optimizer ?? {};
  return rootOf([{ tensors, steps, ...(kind !== undefined && { kind }) }], sha256);
}

/** What a rank tells of a tensor: the digests of what it has whole, and the bytes of the rest. */
interface HashedPart {
  readonly spec: TensorSpec;
  readonly nodes: readonly (readonly [level: number, index: number, digest: string])[];
  /** Parts of leaves, by their first elements. */
  readonly cuts: readonly (readonly [first: number, bytes: string])[];
}

interface HashedRank {
  readonly kind?: string;
  readonly steps: Readonly<Record<string, number>>;
  readonly tensors: readonly HashedPart[];
}

async function hashPiece(piece: HeldPiece, sha256: Sha256): Promise<HashedPart> {
  const { kind, name, state, dtype, shape, start, end } = piece;
  const elementBytes = byteSize(dtype);
  const read = (from: number, to: number) =>
    piece.read(from, to, new Uint8Array((to - from) * elementBytes));
  const isLast = end === sizeOf(shape);
  const first = Math.min(Math.ceil(start / LEAF_ELEMENTS) * LEAF_ELEMENTS, end);
  const cut = isLast ? end : Math.max(first, Math.floor(end / LEAF_ELEMENTS) * LEAF_ELEMENTS);
  const row = new HashRow(sha256);
  for (let from = first; from < cut; from += READ_LEAVES * LEAF_ELEMENTS) {
    const bytes = await read(from, Math.min(from + READ_LEAVES * LEAF_ELEMENTS, cut));
    const digests = await leafDigests(bytes, LEAF_ELEMENTS * elementBytes, sha256);
    for (const [i, digest] of digests.entries()) {
      await row.add({ level: 0, index: from / LEAF_ELEMENTS + i, digest });
    }
  }
  const cuts: [number, string][] = [];
  for (const [from, to] of [
    [start, first],
    [cut, end],
  ] as const) {
    if (from < to) {
      cuts.push([from, toHex(await read(from, to))]);
    }
  }
  return {
    spec: { kind, name, state, dtype, shape },
    nodes: row.nodes.map(({ level, index, digest }) => [level, index, toHex(digest)]),
    cuts,
  };
}

/** The hash of all that the ranks have. */
async function rootOf(ranks: readonly HashedRank[], sha256: Sha256): Promise<string> {
  const steps: Readonly<Record<string, number>> = Object.assign({}, ...ranks.map((r) => r.steps));
  const parts = new Map<string, HashedPart[]>();
  for (const part of ranks.flatMap(({ tensors }) => tensors)) {
    const key = tensorKey(part.spec);
    parts.set(key, [...(parts.get(key) ?? []), part]);
  }
  const tensors: unknown[] = [];
  for (const key of [...parts.keys()].sort()) {
    const own = parts.get(key)!;
    const { kind, name, state = '', dtype, shape } = own[0]!.spec;
    const root = await tensorRoot(own, sha256);
    tensors.push([kind, name, state, dtype, shape, steps[name] ?? 0, toHex(root)]);
  }
  const { kind } = ranks[0]!;
  const told = new TextEncoder().encode(JSON.stringify([kind ?? '', tensors]));
  const marked = new Uint8Array(1 + told.byteLength);
  marked[0] = ROOT;
  marked.set(told, 1);
  return toHex(await sha256(marked));
}

async function tensorRoot(parts: readonly HashedPart[], sha256: Sha256): Promise<Uint8Array> {
  const { dtype, shape } = parts[0]!.spec;
  const leafBytes = LEAF_ELEMENTS * byteSize(dtype);
  const cutLeaves = new Map<number, [number, Uint8Array][]>();
  for (const [first, hex] of parts.flatMap(({ cuts }) => cuts)) {
    const leaf = Math.floor(first / LEAF_ELEMENTS);
    cutLeaves.set(leaf, [...(cutLeaves.get(leaf) ?? []), [first, fromHex(hex)]]);
  }
  const nodes = parts.flatMap((part) =>
    part.nodes.map(([level, index, hex]) => ({ level, index, digest: fromHex(hex) })),
  );
  for (const [index, cuts] of cutLeaves) {
    const ordered = cuts.sort(([a], [b]) => a - b).map(([, bytes]) => bytes);
    const [digest] = await leafDigests(joined(ordered), leafBytes, sha256);
    nodes.push({ level: 0, index, digest: digest! });
  }
  const firstLeaf = ({ level, index }: { level: number; index: number }) => index * pow64(2, level);
  nodes.sort((a, b) => firstLeaf(a) - firstLeaf(b));
  const row = new HashRow(sha256);
  let numLeaves = 0;
  for (const node of nodes) {
    await row.add(node);
    numLeaves += pow64(2, node.level);
  }
  const expected = Math.ceil(sizeOf(shape) / LEAF_ELEMENTS);
  if (numLeaves !== expected) {
    throw new NnConfigError(
      `hashModel: expected ${expected} leaves of '${parts[0]!.spec.name}', got ${numLeaves}. Call it on all ranks that hold the model.`,
    );
  }
  return row.root();
}

function joined(parts: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(parts.reduce((sum, { byteLength }) => sum + byteLength, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.byteLength;
  }
  return whole;
}

function sizeOf(shape: readonly number[]): number {
  return shape.reduce((product, dim) => product * dim, 1);
}

function toHex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

function fromHex(hex: string): Uint8Array {
  const bytes = new Uint8Array(hex.length / 2);
  return bytes.map((_, i) => Number.parseInt(hex.slice(2 * i, 2 * i + 2), 16));
}

/** @throws {NnConfigError} where there is none */
function webCrypto(): Sha256 {
  const { crypto } = globalThis;
  if (crypto?.subtle === undefined) {
    throw new NnConfigError(
      'hashModel: expected WebCrypto, which pages have over https and from localhost, got none. Serve the page so, or pass sha256.',
    );
  }
  return async (bytes) =>
    new Uint8Array(await crypto.subtle.digest('SHA-256', bytes as Uint8Array<ArrayBuffer>));
}
