// Reduce-scatter and all-reduce in two stages, for ranks that share hosts: first within each host,
// then between hosts. Each part crosses between two hosts once, not once for each of their ranks.
//
// Note [hierarchical order]
// The ranks of one host are combined in rank order, then the hosts' results in the order of the
// hosts' lowest ranks, all of it in f32, which is divided and rounded once, at the end. So results
// are equal bit for bit on all ranks and in all runs, but differ from those in plain rank order.

import { byteSize, isFloat, type ReduceDType, type ReduceOptions } from '@shardweave/dtypes';
import { type Borrowed, giveBack } from '../endpoint/borrowed.js';
import type { Call } from '../endpoint/call.js';
import type { HostPlan } from '../endpoint/host-plan.js';
import {
  balancedParts,
  type PartLayout,
  partOf,
  planSegments,
  type SegmentPlan,
  segmentOf,
} from './part-layout.js';

/**
 * The same number as in reduce-scatter.ts, whose Note [rounds] applies here, too: a round goes
 * through both stages.
 */
const AHEAD = 2;

/** The messages of a round, all of which are asked for before any of them is summed. */
interface Round {
  /** For each owner that this rank speaks for, its segment from each other rank of the host. */
  readonly locals: readonly Promise<readonly Borrowed[]>[];
  /** The combined segments of this rank's own part, one from each other host. */
  readonly remotes: Promise<readonly Borrowed[]>;
}

export class Hierarchical {
  readonly #call: Call;
  readonly #hosts: HostPlan;
  readonly #layout: PartLayout;
  readonly #plan: SegmentPlan;
  readonly #options: ReduceOptions;
  readonly #neighbors: readonly number[];
  readonly #owners: readonly number[];
  readonly #maxOwners: number;

  constructor(call: Call, hosts: HostPlan, layout: PartLayout, options: ReduceOptions) {
    this.#call = call;
    this.#hosts = hosts;
    this.#layout = layout;
    this.#options = options;
    this.#neighbors = hosts.members[this.#host]!.filter((rank) => rank !== call.rank);
    this.#owners = hosts.ownersOf(call.rank);
    this.#maxOwners = hosts.maxOwners;
    this.#plan = planSegments(layout, this.#maxOwners);
  }

  /**
   * Works as `reduceScatter` of reduce-scatter.ts does, in the order of Note [hierarchical order].
   */
  async reduceScatter(
    input: Uint8Array,
    output: Uint8Array,
    onReduced: (segment: Uint8Array, round: number) => void = () => {},
  ): Promise<void> {
    const { numRounds } = this.#plan;
    const rounds = Array.from({ length: Math.min(AHEAD, numRounds) }, (_, round) =>
      this.#begin(input, round),
    );
    for (let round = 0; round < numRounds; round++) {
      const segment = segmentOf(output, this.#plan, round);
      await this.#finish(rounds.shift()!, input, segment, round);
      if (segment.byteLength > 0) {
        onReduced(segment, round);
      }
      if (round + AHEAD < numRounds) {
        rounds.push(this.#begin(input, round + AHEAD));
      }
    }
  }

  /**
   * Does a reduce-scatter, and sends each result to all ranks, to those of another host by way of
   * one of them.
   */
  async allReduce(input: Uint8Array, output: Uint8Array): Promise<void> {
    const { rank, worldSize } = this.#call;
    const gathered: Promise<void>[] = [];
    for (let owner = 0; owner < worldSize; owner++) {
      for (let round = 0; round < this.#plan.numRounds && owner !== rank; round++) {
        const segment = segmentOf(partOf(output, this.#layout, owner), this.#plan, round);
        if (segment.byteLength > 0) {
          gathered.push(this.#receiveResult(owner, segment, round));
        }
      }
    }
    await this.reduceScatter(input, partOf(output, this.#layout, rank), (segment, round) => {
      this.#hosts.members.forEach((_, host) => {
        if (host !== this.#host) {
          const to = this.#hosts.speaker(host, rank);
          void this.#call.send(to, segment, this.#phase('result between hosts', round));
        }
      });
      this.#spread(rank, segment, round);
    });
    await Promise.all(gathered);
  }

  get #host(): number {
    return this.#hosts.hostOf[this.#call.rank]!;
  }

  #begin(input: Uint8Array, round: number): Round {
    const call = this.#call;
    for (const to of this.#neighbors) {
      this.#hosts.ownersOf(to).forEach((owner, i) => {
        const segment = this.#segment(input, owner, round);
        void call.send(to, segment, this.#phase('part within host', round, i));
      });
    }
    const locals = this.#owners.map((owner, i) => {
      const { byteLength } = this.#segment(input, owner, round);
      const phase = this.#phase('part within host', round, i);
      return Promise.all(this.#neighbors.map((from) => call.borrow(from, byteLength, phase)));
    });
    const own = this.#segment(input, call.rank, round);
    const sumBytes = (own.byteLength / byteSize(this.#options.dtype)) * byteSize(this.#sumDtype);
    const phase = this.#phase('sum between hosts', round);
    const remotes = this.#hosts.members.flatMap((_, host) =>
      host === this.#host
        ? []
        : [call.borrow(this.#hosts.speaker(host, call.rank), sumBytes, phase)],
    );
    return { locals, remotes: Promise.all(remotes) };
  }

  async #finish(round: Round, input: Uint8Array, target: Uint8Array, k: number): Promise<void> {
    const call = this.#call;
    let ownSum: Uint8Array | undefined;
    for (const [i, owner] of this.#owners.entries()) {
      const locals = await round.locals[i]!;
      const sum = await this.#sumOfHost(this.#segment(input, owner, k), locals);
      if (owner === call.rank) {
        ownSum = sum;
      } else {
        const sent = call.send(owner, sum, this.#phase('sum between hosts', k));
        void sent.then(() => call.scratch.give(sum));
      }
    }
    const remotes = await round.remotes;
    const sums = remotes.map(({ bytes }) => bytes);
    sums.splice(this.#host, 0, ownSum!); // the others are in the order of hosts
    if (target.byteLength > 0) {
      await call.reduce(sums, target, finalOptions(this.#options, call.worldSize));
    }
    await giveBack(remotes);
    call.scratch.give(ownSum!);
  }

  /** Resolves with the sum of this host's ranks, in scratch memory. */
  async #sumOfHost(own: Uint8Array, locals: readonly Borrowed[]): Promise<Uint8Array> {
    const { dtype } = this.#options;
    const parts = locals.map(({ bytes }) => bytes);
    const place = this.#hosts.members[this.#host]!.indexOf(this.#call.rank);
    parts.splice(place, 0, own);
    const elements = own.byteLength / byteSize(dtype);
    const sum = this.#call.scratch.take(elements * byteSize(this.#sumDtype));
    if (elements > 0) {
      await this.#call.reduce(parts, sum, hostOptions(this.#options));
    }
    await giveBack(locals);
    return sum;
  }

  /**
   * Receives the result of `owner`, from the owner or from the rank that speaks for it on this
   * host; a rank that speaks for it passes it on to the others of its host.
   */
  async #receiveResult(owner: number, segment: Uint8Array, round: number): Promise<void> {
    const call = this.#call;
    const speaker = this.#hosts.speaker(this.#host, owner);
    if (speaker === call.rank) {
      await call.receive(owner, segment, this.#phase('result between hosts', round));
      this.#spread(owner, segment, round);
    } else {
      const i = this.#hosts.ownersOf(speaker).indexOf(owner);
      await call.receive(speaker, segment, this.#phase('result within host', round, i));
    }
  }

  #spread(owner: number, segment: Uint8Array, round: number): void {
    const phase = this.#phase('result within host', round, this.#owners.indexOf(owner));
    for (const to of this.#neighbors) {
      void this.#call.send(to, segment, phase);
    }
  }

  #segment(whole: Uint8Array, owner: number, round: number): Uint8Array {
    return segmentOf(partOf(whole, this.#layout, owner), this.#plan, round);
  }

  get #sumDtype(): ReduceDType {
    return sumDtype(this.#options.dtype);
  }

  /**
   * The phase of a message. Two ranks of one host have a phase for each owner that the sender or
   * the receiver speaks for.
   */
  #phase(
    stage: 'part within host' | 'sum between hosts' | 'result within host' | 'result between hosts',
    round: number,
    owner = 0,
  ): number {
    const isResult = stage.startsWith('result');
    const base = isResult ? this.#plan.numRounds * this.#maxOwners : 0;
    return base + round * this.#maxOwners + owner;
  }
}

/** Works as `allReduce` of all-reduce.ts does for large buffers. */
export async function allReduceByHosts(
  call: Call,
  hosts: HostPlan,
  input: Uint8Array,
  output: Uint8Array,
  options: ReduceOptions,
): Promise<void> {
  const layout = balancedParts(call.worldSize, input.byteLength, byteSize(options.dtype));
  await new Hierarchical(call, hosts, layout, options).allReduce(input, output);
}

/** Combines the parts of all ranks, all of which are on this rank, in the same order. */
export async function reduceByHosts(
  call: Call,
  hosts: HostPlan,
  parts: readonly Uint8Array[],
  output: Uint8Array,
  options: ReduceOptions,
): Promise<void> {
  const elements = output.byteLength / byteSize(options.dtype);
  const sums: Uint8Array[] = [];
  for (const members of hosts.members) {
    const sum = call.scratch.take(elements * byteSize(sumDtype(options.dtype)));
    const ofHost = members.map((rank) => parts[rank]!);
    await call.reduce(ofHost, sum, hostOptions(options));
    sums.push(sum);
  }
  await call.reduce(sums, output, finalOptions(options, call.worldSize));
  for (const sum of sums) {
    call.scratch.give(sum);
  }
}

function hostOptions({ dtype, op }: ReduceOptions): ReduceOptions {
  return { dtype: sumDtype(dtype), inputDtype: dtype, op: op === 'mean' ? 'sum' : op };
}

function finalOptions({ dtype, op }: ReduceOptions, divisor: number): ReduceOptions {
  return { dtype, inputDtype: sumDtype(dtype), op, divisor };
}

/**
 * The dtype of sums within a host: integers wrap around alike at any stage, but floats are rounded
 * only once if their sums stay in f32.
 */
function sumDtype(dtype: ReduceDType): ReduceDType {
  return isFloat(dtype) ? 'f32' : dtype;
}
