// Numbers the calls of a group, runs them on the endpoint, and counts and traces what they did.

import type { WireFormat } from '@shardweave/dtypes';
import type { CallSignature, OperationName } from '../call-signature.js';
import type { Call } from '../endpoint/call.js';
import { HostPlan } from '../endpoint/host-plan.js';
import { GroupClosedError } from '../errors.js';
import { hashNumbers, hashText } from '../hash-numbers.js';
import { CallCounts } from './call-counts.js';
import type {
  BarrierOptions,
  MoveOptions,
  ReduceCallOptions,
  RootedOptions,
  TraceHandler,
} from './process-group.js';
import type { TransportGroupOptions } from './transport-group.js';

/** The part of a call's signature that its operation knows. */
export interface CallShape {
  readonly operation: OperationName;
  readonly byteLength: number;
  readonly layout?: number;
  readonly counts?: readonly number[] | undefined;
  readonly wire?: WireFormat | undefined;
  readonly tree?: readonly number[] | undefined;
}

type CallOptions = MoveOptions & Partial<RootedOptions & ReduceCallOptions & BarrierOptions>;

export class CallRunner {
  onTrace: TraceHandler | undefined;
  isClosed = false;
  readonly counts = new CallCounts();
  readonly hosts: HostPlan | undefined;
  readonly #group: string;
  readonly #members: readonly number[];
  readonly #rank: number;
  readonly #peers: readonly number[];
  readonly #options: TransportGroupOptions;
  #sequence = 0;

  constructor(group: string, members: readonly number[], options: TransportGroupOptions) {
    const { endpoint, hosts } = options;
    const rank = members.indexOf(endpoint.rank);
    this.#group = group;
    this.#members = members;
    this.#rank = rank;
    this.#peers = members.map((_, i) => (rank + i) % members.length).slice(1);
    this.#options = options;
    this.onTrace = options.onTrace;
    this.hosts = hosts && HostPlan.of(members.map((member) => hosts[member]!));
  }

  /** The number of the next collective. */
  get sequence(): number {
    return this.#sequence;
  }

  collective(
    what: CallShape,
    options: CallOptions,
    body: (call: Call) => Promise<void>,
  ): Promise<void> {
    return this.run(what, this.#sequence++, options, body);
  }

  async run(
    what: CallShape,
    sequence: number,
    options: CallOptions,
    body: (call: Call) => Promise<void>,
  ): Promise<void> {
    const { endpoint } = this.#options;
    if (this.isClosed && endpoint.failure === undefined) {
      throw new GroupClosedError({
        rank: endpoint.rank,
        worldSize: endpoint.worldSize,
        call: what.operation,
      });
    }
    const { tree } = what;
    const hosts = options.op === undefined || tree !== undefined ? undefined : this.hosts;
    const { identity } = options;
    const identityHash = identity === undefined ? 0 : hashText(identity);
    const treeHash = tree === undefined ? 0 : hashNumbers(tree);
    const signature: CallSignature = {
      operation: what.operation,
      byteLength: what.byteLength,
      layout: ((what.layout ?? 0) ^ (hosts?.hash ?? 0) ^ treeHash ^ identityHash) >>> 0,
      dtype: what.wire === undefined ? (options.dtype ?? 'u8') : `f32 as ${what.wire}`,
      reduceOp: options.op ?? null,
      root: options.root ?? -1,
    };
    const timeoutMs = options.timeoutMs ?? this.#options.timeoutMs;
    const spec = {
      group: this.#group,
      members: this.#members,
      rank: this.#rank,
      peers: this.#peers,
      sequence,
      signature,
      counts: what.counts,
      identity,
      elseAbort: options.elseAbort,
      hosts,
      tree,
      timeoutMs,
    };
    const startMs = endpoint.clock.now();
    let hasFailed = true;
    try {
      const call = await endpoint.run(spec, body);
      hasFailed = false;
      this.counts.add(what.operation, call);
    } finally {
      this.onTrace?.({
        name: what.operation,
        seq: sequence,
        startMs,
        endMs: endpoint.clock.now(),
        bytes: what.byteLength,
        rank: this.#rank,
        group: this.#group,
        tag: options.tag,
        failed: hasFailed,
      });
    }
  }
}
