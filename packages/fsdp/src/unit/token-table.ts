// A frozen token table that is never gathered. Each rank has a run of its rows, and computes with
// those for the tokens of all ranks; Megatron calls that vocabulary parallelism.
//
// Note [vocabulary parallel]
// Rank r has words [r * per, (r + 1) * per) of a table [words, width]. What travels is a few rows
// of `width` numbers for each token, where a gather moves `words` of them.
//
//   lookUp  All ranks get all ids, and each looks up those that it has. The rows of the others are
//           zeros, so the sum over ranks has the table's own values: its bits, but for the sign of
//           a zero.
//   losses  All ranks get all rows x. From its words each computes a logSumExp and its slope, and
//           the logit of a target that it has. What all words give is made of these:
//             logSumExp = log(sum over r of exp(logSumExp_r)), loss = logSumExp - logit
//             dx = (sum over r of exp(logSumExp_r - logSumExp) * slope_r) - the target's row
//           A frozen table has no gradient, so dx is there at the end of forward, and backward
//           exchanges nothing.
//   logits  All ranks get all rows x, and then all logits.

import type { ExchangeCall, ProcessGroup } from '@shardweave/collectives';
import type { ShardedTable } from '@shardweave/nn/flat';
import {
  byteSize,
  cast,
  type DType,
  DTypeError,
  embedding,
  linear,
  linearCrossEntropyPart,
  mul,
  ShapeError,
  sub,
  Tensor,
} from '@shardweave/tensor-core';
import { FsdpConfigError } from '../errors.js';
import type { UnitLinks } from './unit-links.js';
import { type Vocabulary, wholeSums } from './whole-sums.js';

/** This rank's rows of a table, and how it meets the other ranks. */
export interface TableShard {
  readonly name: string;
  readonly group: ProcessGroup;
  /** The rows of this rank and its padding, one after another. */
  readonly flat: Tensor;
  /** Which part of the table it is. */
  readonly index: number;
  links(): Pick<UnitLinks, 'gathers'>;
  /** Throws where this rank would exchange alone. */
  requireCall(): void;
  /** Tells the other ranks that this one can't take part in an exchange of `what`. */
  failing(what: string): (error: unknown) => Promise<void>;
}

/** Numbers of one dtype that ranks exchange. */
interface Moved {
  readonly dtype: DType;
  /** How many of them each rank has. */
  readonly counts: readonly number[];
}

/** An id that no table has. */
const NO_ID = -1;

/** Computes with a token table in parts. See Note [vocabulary parallel]. */
export class TokenTable implements ShardedTable {
  readonly #shard: TableShard;
  readonly #vocabulary: Vocabulary;
  readonly #width: number;

  /** @param shape that of the whole table; a shard has whole rows */
  constructor(shard: TableShard, [words, width]: readonly [words: number, width: number]) {
    this.#shard = shard;
    this.#vocabulary = { words, per: shard.flat.size / width };
    this.#width = width;
  }

  /** @throws {DTypeError} when the ids are no integers */
  async lookUp(ids: Tensor): Promise<Tensor> {
    const { device } = ids;
    requireIds('embedding', ids);
    const counts = await this.#countsOf(ids.size);
    const all = int32(await this.#gather('ids', ids.toBytes(), { dtype: 'i32', counts }));
    const found = embedding(this.#part, device.tensor(this.#ownIds(all)));
    const { dtype } = found;
    const rows = await this.#sum('rows', found.toBytes(), { dtype, counts: this.#wide(counts) });
    return device.tensor(rows, [...ids.shape, this.#width], { dtype });
  }

  /**
   * @throws {ShapeError} when there is not one target for each row
   * @throws {DTypeError} when the targets are no integers
   */
  async losses(x: Tensor, targets: Tensor): Promise<Tensor> {
    const { device } = x;
    requireIds('linearCrossEntropy', targets);
    if (x.size !== targets.size * this.#width || x.shape.at(-1) !== this.#width) {
      throw new ShapeError(
        `linearCrossEntropy: expected x [..., ${this.#width}] and one target per row of it, got x [${x.shape.join(', ')}] and targets [${targets.shape.join(', ')}].`,
      );
    }
    const counts = await this.#countsOf(targets.size);
    const [rows, ids] = await Promise.all([
      this.#gatherRows(x, counts),
      this.#gather('targets', targets.toBytes(), { dtype: 'i32', counts }),
    ]);
    const all = int32(ids);
    const own = device.tensor(this.#ownIds(all));
    const hasSlopes = device.isGradEnabled && x.requiresGrad;
    const part = linearCrossEntropyPart(rows, own, { weight: this.#part, hasSlopes });
    rows.dispose();
    const whole = await this.#wholeSums(Promise.all([part.logSumExp, part.losses].map(read)), all);
    const first = sumOf(counts.slice(0, this.#shard.group.rank));
    const found = Float32Array.from({ length: targets.size }, (_, i) => whole.loss(first + i));
    const losses = device.tensor(found, targets.shape);
    if (part.slopes === undefined) {
      return losses;
    }
    const scales = device.tensor(
      Float32Array.from(all, (_, i) => whole.scale(i)),
      [all.length, 1],
    );
    const slopes = this.#slopesOf(part.slopes, { scales, own });
    const sum = { dtype: 'f32', counts: this.#wide(counts) } as const;
    const dx = device.tensor(await this.#sum('gradients', slopes.toBytes(), sum), x.shape, {
      dtype: 'f32',
    });
    slopes.dispose();
    device.record({
      name: 'linearCrossEntropy',
      inputs: [x],
      outputs: [losses],
      saved: [dx],
      backward: ([dLoss]) => {
        const each = new Tensor(dLoss!.storage, [...targets.shape, 1], dLoss!.offset);
        return [cast(mul(dx, each), x.dtype)];
      },
    });
    return losses;
  }

  /** @throws {FsdpConfigError} where a gradient may come to the logits */
  async logits(x: Tensor): Promise<Tensor> {
    const { device } = x;
    const { group, name } = this.#shard;
    if (device.isGradEnabled && x.requiresGrad) {
      throw new FsdpConfigError(
        `fsdp: expected losses of targets, or logits outside the graph, from token table '${name}' with vocabParallel, got logits that a gradient may come to. Call the model with targets, or leave the option out.`,
      );
    }
    const counts = await this.#countsOf(x.size / this.#width);
    const rows = await this.#gatherRows(x, counts);
    const own = linear(rows, { weight: this.#part, transposeWeight: true });
    const { dtype } = own;
    const numRows = sumOf(counts);
    const shares = this.#shares();
    const moved = { dtype, counts: shares.map((share) => share * numRows) };
    const all = await this.#gather('logits', own.toBytes(), moved);
    const first = sumOf(counts.slice(0, group.rank));
    const shape = [...x.shape.slice(0, -1), this.#vocabulary.words];
    const bytes = joinColumns(
      all,
      { first, numRows, count: counts[group.rank]! },
      shares.map((share) => share * byteSize(dtype)),
    );
    return device.tensor(bytes, shape, { dtype });
  }

  /** This rank's rows, without padding. */
  get #part(): Tensor {
    const { flat, index } = this.#shard;
    return new Tensor(flat.storage, [this.#shares()[index]!, this.#width]);
  }

  /** The number of words of each rank. */
  #shares(): number[] {
    const { words, per } = this.#vocabulary;
    const { worldSize } = this.#shard.group;
    return Array.from({ length: worldSize }, (_, rank) => Math.min(per, words - rank * per));
  }

  /** Ids counted from this rank's first word; NO_ID where it has none of that id. */
  #ownIds(ids: Int32Array): Int32Array {
    const { index } = this.#shard;
    const first = index * this.#vocabulary.per;
    const share = this.#shares()[index]!;
    return ids.map((id) => (id >= first && id < first + share ? id - first : NO_ID));
  }

  /** The gradients of the losses with respect to all ranks' rows, as far as these words go. */
  #slopesOf(
    slopes: Tensor,
    { scales, own }: { readonly scales: Tensor; readonly own: Tensor },
  ): Tensor {
    const { device } = slopes;
    return device.scope(() => {
      const targets = cast(embedding(this.#part, own), 'f32');
      const difference = sub(mul(slopes, scales), targets);
      slopes.dispose();
      return difference;
    });
  }

  /** What all ranks' words make of the sums that each has for the tokens of all. */
  async #wholeSums(own: Promise<Float32Array[]>, ids: Int32Array) {
    const { group, index } = this.#shard;
    const sent = own.then(([logSumExp, losses]) => {
      const numbers = new Float32Array(2 * ids.length);
      numbers.set(logSumExp!);
      numbers.set(losses!, ids.length);
      return new Uint8Array(numbers.buffer);
    });
    const counts = Array.from({ length: group.worldSize }, () => 2 * ids.length);
    const { buffer } = await this.#gather('sums', sent, { dtype: 'f32', counts });
    const sums = new Float32Array(buffer);
    return wholeSums({ sums, ids, rank: index, ...this.#vocabulary });
  }

  /** The rows x of all ranks, [tokens, width]. */
  async #gatherRows(x: Tensor, counts: readonly number[]): Promise<Tensor> {
    const { device, dtype } = x;
    const bytes = await this.#gather('hidden rows', x.toBytes(), {
      dtype,
      counts: this.#wide(counts),
    });
    return device.tensor(bytes, [sumOf(counts), this.#width], { dtype });
  }

  /** The number of tokens that each rank has. */
  async #countsOf(own: number): Promise<number[]> {
    this.#shard.requireCall();
    const bytes = new Uint8Array(Uint32Array.of(own).buffer);
    const counts = Array.from({ length: this.#shard.group.worldSize }, () => 1);
    const all = await this.#gather('numbers of tokens', Promise.resolve(bytes), {
      dtype: 'u32',
      counts,
    });
    return [...new Uint32Array(all.buffer)];
  }

  #wide(counts: readonly number[]): number[] {
    return counts.map((count) => count * this.#width);
  }

  /** The numbers of all ranks, one rank after another. */
  #gather(what: string, own: Promise<Uint8Array>, { dtype, counts }: Moved): Promise<Uint8Array> {
    const { group } = this.#shard;
    return this.#exchange(what, own, async (input, options) => {
      const output = new Uint8Array(sumOf(counts) * byteSize(dtype));
      await group.allGather(input, output, { ...options, dtype, counts });
      return output;
    });
  }

  /** This rank's part of the sum over ranks. */
  #sum(what: string, all: Promise<Uint8Array>, { dtype, counts }: Moved): Promise<Uint8Array> {
    const { group } = this.#shard;
    return this.#exchange(what, all, async (input, options) => {
      const output = new Uint8Array(counts[group.rank]! * byteSize(dtype));
      await group.reduceScatter(input, output, { ...options, dtype, op: 'sum', counts });
      return output;
    });
  }

  /** Starts a collective in its turn among gathers, with what `ready` brings. */
  #exchange(
    what: string,
    ready: Promise<Uint8Array>,
    call: (input: Uint8Array, options: ExchangeCall) => Promise<Uint8Array>,
  ): Promise<Uint8Array> {
    const { name, links, failing } = this.#shard;
    const options = { tag: name, identity: `${name} ${what}` };
    return links().gathers.enqueue(ready, (input) => call(input, options), {
      failed: failing(what),
    });
  }
}

/**
 * Rows [first, first + count) of a matrix that lies in blocks of columns, each [numRows, columns].
 * @param widths the bytes of a row in each block
 */
function joinColumns(
  blocks: Uint8Array,
  {
    first,
    count,
    numRows,
  }: { readonly first: number; readonly count: number; readonly numRows: number },
  widths: readonly number[],
): Uint8Array {
  const rowBytes = sumOf(widths);
  const joined = new Uint8Array(count * rowBytes);
  let column = 0;
  for (const width of widths) {
    for (let row = 0; row < count; row++) {
      const from = column * numRows + (first + row) * width;
      joined.set(blocks.subarray(from, from + width), row * rowBytes + column);
    }
    column += width;
  }
  return joined;
}

function requireIds(op: string, { dtype }: Tensor): void {
  if (dtype !== 'i32' && dtype !== 'u32') {
    throw new DTypeError(`${op}: expected ids of i32 or u32, got ${dtype}.`);
  }
}

async function read(tensor: Tensor): Promise<Float32Array> {
  const numbers = await tensor.toArray();
  tensor.dispose();
  return numbers as Float32Array;
}

function int32({ buffer }: Uint8Array): Int32Array {
  return new Int32Array(buffer);
}

function sumOf(counts: readonly number[]): number {
  return counts.reduce((sum, count) => sum + count, 0);
}
