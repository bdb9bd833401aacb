// ProcessGroup over any Transport: it checks arguments and chooses what moves the parts, which is
// algorithms/ or an engine. The CallRunner numbers, counts and traces the calls. The Endpoint does
// the matching and handles failures.

import type { WireCodec, WireFormat } from '@shardweave/dtypes';
import { allGather } from '../algorithms/all-gather.js';
import { allReduce } from '../algorithms/all-reduce.js';
import { barrier } from '../algorithms/barrier.js';
import {
  allGatherCompressed,
  allReduceCompressed,
  type Compression,
  reduceScatterCompressed,
} from '../algorithms/compressed.js';
import { evenParts, type PartLayout } from '../algorithms/part-layout.js';
import { reduceScatter } from '../algorithms/reduce-scatter.js';
import { broadcast, gather } from '../algorithms/rooted.js';
import { type TreeCall, treeAllReduce, treeReduceScatter } from '../algorithms/tree-sums.js';
import type { Call } from '../endpoint/call.js';
import type { Endpoint } from '../endpoint/endpoint.js';
import { CallArguments, type CallCompression, type Division } from './call-arguments.js';
import { CallRunner, type CallShape } from './call-runner.js';
import { splitId } from './group-id.js';
import type { NativeCollectives } from './native-collectives.js';
import type {
  BarrierOptions,
  CollectiveStats,
  PartsOptions,
  ProcessGroup,
  RecvOptions,
  ReduceCallOptions,
  ReducePartsOptions,
  RootedOptions,
  SendOptions,
  TraceHandler,
} from './process-group.js';
import { StartOrder } from './start-order.js';

/** What the groups of a job share on one rank: the endpoint, and the defaults of their calls. */
export interface TransportGroupOptions {
  readonly endpoint: Endpoint;
  readonly timeoutMs: number;
  /** The first `onTrace` of the group; those that are split from it begin with its own. */
  readonly onTrace: TraceHandler | undefined;
  /** The host of each rank of the world; see GroupOptions. */
  readonly hosts?: readonly number[] | undefined;
  /** How f32 travels in calls that don't set it. */
  readonly wire: WireFormat | 'exact';
  /** Gives the codec that all groups of the job share, made at first use. */
  readonly codec: () => Promise<WireCodec>;
  /** The engine that runs whole collectives in place of messages, for the groups that it serves. */
  readonly native?: NativeCollectives | undefined;
}

/** The algorithms over messages; a group may have an engine instead. */
const ALGORITHMS = { allGather, reduceScatter, allReduce, broadcast, gather };

const EMPTY = new Uint8Array(0);

/**
 * The ProcessGroup over any Transport. It checks arguments (CollectiveUsageError), numbers, counts
 * and traces the calls; the endpoint matches them between ranks and moves their bytes.
 * `createWorldGroup` makes the group of all ranks, and `split` makes others.
 */
export class TransportGroup implements ProcessGroup {
  readonly rank: number;
  readonly worldSize: number;
  readonly id: string;
  readonly starts = new StartOrder(() => this.#calls.sequence);
  readonly locals = new Map<symbol, unknown>();
  readonly #members: readonly number[];
  readonly #options: TransportGroupOptions;
  readonly #arguments: CallArguments;
  readonly #calls: CallRunner;

  /** @param members world ranks, in group order */
  constructor(id: string, members: readonly number[], options: TransportGroupOptions) {
    this.id = id;
    this.rank = members.indexOf(options.endpoint.rank);
    this.worldSize = members.length;
    this.#members = members;
    this.#options = options;
    this.#calls = new CallRunner(id, members, options);
    this.#arguments = new CallArguments(this.rank, this.worldSize, (call, message) =>
      options.endpoint.usageError(call, message),
    );
  }

  get onTrace(): TraceHandler | undefined {
    return this.#calls.onTrace;
  }

  set onTrace(handler: TraceHandler | undefined) {
    this.#calls.onTrace = handler;
  }

  async allGather(
    input: Uint8Array,
    output: Uint8Array,
    options: PartsOptions = {},
  ): Promise<void> {
    const name = 'allGather';
    this.#arguments.options(name, options);
    this.#arguments.buffer(name, 'input', input);
    this.#arguments.buffer(name, 'output', output);
    const whole = { name: 'output', bytes: output };
    const division = this.#arguments.division(name, input, whole, options);
    this.#arguments.noOverlap(name, input, output, division.layout.offsets[this.rank]!);
    const { layout } = division;
    const wire = this.#arguments.compression(name, input, options, this.#options.wire);
    if (wire !== undefined) {
      this.#arguments.notInPlace(name, input, output);
    }
    const shape = { ...divided(name, division, options), wire: wire?.format };
    await this.#calls.collective(shape, options, (call) =>
      wire === undefined
        ? this.#algorithms.allGather(call, input, output, layout, options.placeOwn)
        : this.#compressed(wire, (compressor) =>
            allGatherCompressed(call, input, output, layout, compressor),
          ),
    );
  }

  async reduceScatter(
    input: Uint8Array,
    output: Uint8Array,
    options: ReducePartsOptions,
  ): Promise<void> {
    const name = 'reduceScatter';
    this.#arguments.options(name, options, '{ dtype, op }');
    this.#arguments.buffer(name, 'input', input);
    this.#arguments.buffer(name, 'output', output);
    const tree = this.#arguments.tree(name, options);
    const partBytes = output.byteLength / (tree?.sums.length ?? 1);
    const reduce = this.#arguments.reduceOptions(name, partBytes, options);
    const whole = { name: 'input', bytes: input };
    const division = this.#arguments.division(name, output, whole, options, tree);
    const { layout } = division;
    if (tree !== undefined) {
      this.#arguments.noTreeOverlap(name, input, output);
      const shape = { ...divided(name, division, options), tree: tree.numbers };
      return this.#calls.collective(shape, options, (call) =>
        sumTree(this.#native, call, { input, output, layout, tree }),
      );
    }
    this.#arguments.noOverlap(name, output, input, layout.offsets[this.rank]!);
    const wire = this.#arguments.compression(name, input, options, this.#options.wire);
    const shape = { ...divided(name, division, options), wire: wire?.format };
    const { op } = reduce;
    await this.#calls.collective(shape, options, (call) =>
      wire === undefined
        ? this.#reductions.reduceScatter(call, input, output, layout, reduce, options.addOwn)
        : this.#compressed(wire, (compressor) =>
            reduceScatterCompressed(call, input, output, layout, op, compressor),
          ),
    );
  }

  async allReduce(
    input: Uint8Array,
    output: Uint8Array,
    options: ReduceCallOptions,
  ): Promise<void> {
    this.#arguments.options('allReduce', options, '{ dtype, op }');
    this.#arguments.buffer('allReduce', 'input', input);
    this.#arguments.buffer('allReduce', 'output', output);
    const tree = this.#arguments.tree('allReduce', options);
    const { byteLength } = tree === undefined ? input : output;
    const reduce = this.#arguments.reduceOptions('allReduce', byteLength, options);
    if (tree === undefined) {
      this.#arguments.bytes('allReduce', 'output', output, byteLength);
    } else {
      const numNodes = tree.nodes[this.rank]!.length;
      this.#arguments.bytes('allReduce', 'input', input, byteLength * numNodes);
    }
    this.#arguments.noOverlap('allReduce', input, output, 0);
    if (tree !== undefined) {
      const shape = { operation: 'allReduce', byteLength, tree: tree.numbers } as const;
      return this.#calls.collective(shape, options, (call) =>
        sumTree(this.#native, call, { input, output, tree }),
      );
    }
    const wire = this.#arguments.compression('allReduce', input, options, this.#options.wire);
    const shape = { operation: 'allReduce', byteLength, wire: wire?.format } as const;
    await this.#calls.collective(shape, options, (call) =>
      wire === undefined
        ? this.#reductions.allReduce(call, input, output, reduce)
        : this.#compressed(wire, (compressor) =>
            allReduceCompressed(call, input, output, reduce.op, compressor),
          ),
    );
  }

  async broadcast(buffer: Uint8Array, options: RootedOptions): Promise<void> {
    this.#arguments.options('broadcast', options, '{ root }');
    this.#arguments.buffer('broadcast', 'buffer', buffer);
    this.#arguments.rank('broadcast', 'root', options.root);
    const { byteLength } = buffer;
    await this.#calls.collective({ operation: 'broadcast', byteLength }, options, (call) =>
      this.#algorithms.broadcast(call, buffer, options.root),
    );
  }

  async gather(
    input: Uint8Array,
    output: Uint8Array | null,
    options: RootedOptions,
  ): Promise<void> {
    this.#arguments.options('gather', options, '{ root }');
    this.#arguments.buffer('gather', 'input', input);
    this.#arguments.rank('gather', 'root', options.root);
    const { byteLength } = input;
    if (output !== null || this.rank === options.root) {
      this.#arguments.buffer('gather', 'output', output as Uint8Array);
    }
    if (output !== null && this.rank === options.root) {
      this.#arguments.bytes('gather', 'output', output, byteLength * this.worldSize);
      this.#arguments.noOverlap('gather', input, output, byteLength * this.rank);
    }
    await this.#calls.collective({ operation: 'gather', byteLength }, options, (call) =>
      this.#algorithms.gather(call, input, output, options.root),
    );
  }

  async send(data: Uint8Array, options: SendOptions): Promise<void> {
    this.#arguments.options('send', options, '{ to }');
    this.#arguments.buffer('send', 'data', data);
    const channel = this.#arguments.pointToPoint('send', options.to, options.channel);
    const { byteLength } = data;
    await this.#calls.run({ operation: 'send', byteLength }, channel, options, (call) =>
      call.send(options.to, data),
    );
  }

  async recv(buffer: Uint8Array, options: RecvOptions): Promise<void> {
    this.#arguments.options('recv', options, '{ from }');
    this.#arguments.buffer('recv', 'buffer', buffer);
    const channel = this.#arguments.pointToPoint('recv', options.from, options.channel);
    const { byteLength } = buffer;
    await this.#calls.run({ operation: 'recv', byteLength }, channel, options, (call) =>
      call.receive(options.from, buffer),
    );
  }

  async barrier(options: BarrierOptions = {}): Promise<void> {
    this.#arguments.options('barrier', options);
    await this.#calls.collective({ operation: 'barrier', byteLength: 0 }, options, (call) =>
      this.#native === undefined
        ? barrier(call)
        : this.#native.allGather(call, EMPTY, EMPTY, evenParts(this.worldSize, 0)),
    );
  }

  async split(color: number, key: number = this.rank): Promise<ProcessGroup> {
    const { endpoint } = this.#options;
    if (!Number.isInteger(color)) {
      throw endpoint.usageError('split', `expected an integer color, got ${color}.`);
    }
    const { sequence } = this.#calls;
    const own = new Uint8Array(Float64Array.of(color, key).buffer);
    const all = new Float64Array(2 * this.worldSize);
    const layout = evenParts(this.worldSize, own.byteLength);
    const id = splitId(this.id, sequence, color);
    let members: readonly number[] = [];
    const what = { operation: 'split', byteLength: own.byteLength } as const;
    await this.#calls.collective(what, {}, async (call) => {
      await this.#algorithms.allGather(call, own, new Uint8Array(all.buffer), layout);
      members = this.#members
        .map((world, r) => ({ world, r, color: all[2 * r]!, key: all[2 * r + 1]! }))
        .filter((member) => member.color === color)
        .sort((a, b) => a.key - b.key || a.r - b.r)
        .map(({ world }) => world);
      await this.#native?.openGroup(call, id, members);
    });
    const group = new TransportGroup(id, members, this.#options);
    group.onTrace = this.onTrace;
    return group;
  }

  allocate(byteLength: number): Uint8Array {
    this.#arguments.byteCount('allocate', byteLength);
    return this.#options.endpoint.allocate(byteLength);
  }

  register(buffer: SharedArrayBuffer): void {
    this.#arguments.sharedBuffer('register', buffer);
    this.#options.endpoint.register(buffer);
  }

  release(memory: Uint8Array | ArrayBufferLike): void {
    this.#options.endpoint.release(memory);
  }

  stats(): CollectiveStats {
    return this.#calls.counts.read();
  }

  abort(reason: string): void {
    const { endpoint } = this.#options;
    endpoint.fail({ kind: 'aborted', origin: endpoint.rank, reason });
  }

  async close(): Promise<void> {
    if (!this.#calls.isClosed) {
      this.#calls.isClosed = true;
      this.#native?.closeGroup?.(this.id);
    }
    if (this.id === 'world') {
      await this.#options.endpoint.close();
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  get #native(): NativeCollectives | undefined {
    const { native } = this.#options;
    return native?.serves(this.id) ? native : undefined;
  }

  get #algorithms(): typeof ALGORITHMS {
    return this.#native ?? ALGORITHMS;
  }

  /** Sums within hosts go by messages, because an engine knows nothing of hosts. */
  get #reductions(): typeof ALGORITHMS {
    return this.#calls.hosts === undefined ? this.#algorithms : ALGORITHMS;
  }

  async #compressed(
    wire: CallCompression,
    move: (by: Compression) => Promise<void>,
  ): Promise<void> {
    await move({ ...wire, codec: await this.#options.codec() });
  }
}

function divided(
  operation: 'allGather' | 'reduceScatter',
  { byteLength, layoutHash }: Division,
  { counts }: PartsOptions,
): CallShape {
  return { operation, byteLength, layout: layoutHash, counts };
}

/** A reduceScatter, or an allReduce where `layout` is undefined, in the order of a tree. */
function sumTree(
  engine: NativeCollectives | undefined,
  call: Call,
  what: {
    readonly input: Uint8Array;
    readonly output: Uint8Array;
    readonly layout?: PartLayout;
    readonly tree: TreeCall;
  },
): Promise<void> {
  const { input, output, layout, tree } = what;
  if (engine?.sumTree !== undefined) {
    return engine.sumTree(call, input, output, layout, tree);
  }
  return layout === undefined
    ? treeAllReduce(call, input, output, tree)
    : treeReduceScatter(call, input, output, layout, tree);
}
