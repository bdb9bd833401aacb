// One rank's meeting point of messages and calls, shared by all groups of a job: matches by group,
// sequence number, sender and phase, compares what ranks called, and spreads failures.
//
// Note [one failure]: the first failure wins and ends all groups of the rank; it is sent to every
// peer, so that nobody waits for a rank that has given up.

import { Reducer } from '@shardweave/dtypes';
import { Arrival } from './arrival.js';
import { Call, type CallServices, type CallSpec } from './call.js';
import { describeCall, isPointToPoint, isSameCall } from './call-signature.js';
import { type CollectiveError, CollectiveUsageError, errorOfFailure } from './errors.js';
import type { Failure, PeerCall } from './failure.js';
import { MismatchInquiry } from './mismatch-inquiry.js';
import { ScratchPool } from './scratch-pool.js';
import type {
  ControlMessage,
  MessageHeader,
  MessageSink,
  Transport,
  TransportListener,
} from './transport.js';

/** Ten minutes: longer than any step we run, shorter than a night lost to a hang. */
export const DEFAULT_TIMEOUT_MS = 600_000;

export interface EndpointOptions {
  readonly rank: number;
  readonly worldSize: number;
  /** Shares one reducer among the ranks of a process. Default: its own, made at first use. */
  readonly reducer?: () => Promise<Reducer>;
}

/** The messages of one collective, or of one channel between two ranks. */
interface Mailbox {
  call: Call | undefined;
  readonly arrivals: Map<number, Arrival>;
}

/**
 * Finished calls that are remembered, for ranks that disagree later: a leaf of a broadcast is done
 * before the root knows. More than anybody has in flight.
 */
const NUM_REMEMBERED = 64;

/** Messages a peer may send in one collective. */
const PHASES = 2;

const DISCARD: MessageSink = { write: () => {} };

export class Endpoint implements TransportListener {
  readonly rank: number;
  readonly worldSize: number;
  /** Resolves once, when the job has failed or this rank has closed. */
  readonly failed: Promise<Failure>;
  readonly #scratch = new ScratchPool();
  readonly #mailboxes = new Map<string, Map<number, Mailbox>>();
  /** Arrivals of send and recv by group, sender and channel, in order. */
  readonly #channels = new Map<string, Arrival[]>();
  readonly #active = new Map<Call, (error: CollectiveError) => void>();
  readonly #left = new Set<number>();
  readonly #makeReducer: () => Promise<Reducer>;
  readonly #services: CallServices;
  #transport: Transport | undefined;
  #reducer: Promise<Reducer> | undefined;
  #failure: Failure | undefined;
  #inquiry: MismatchInquiry | undefined;
  #onFailed: (failure: Failure) => void = () => {};

  constructor(options: EndpointOptions) {
    this.rank = options.rank;
    this.worldSize = options.worldSize;
    this.#makeReducer = options.reducer ?? Reducer.create;
    this.failed = new Promise((resolve) => {
      this.#onFailed = resolve;
    });
    const endpoint = this;
    this.#services = {
      get transport() {
        return endpoint.#transport!;
      },
      scratch: this.#scratch,
      reducer: () => {
        this.#reducer ??= this.#makeReducer();
        return this.#reducer;
      },
      arrivalOf: (call, from, phase) => this.#arrivalOf(call, from, phase),
      afterPost: (from, arrival) => this.#afterPost(from, arrival),
    };
  }

  get failure(): Failure | undefined {
    return this.#failure;
  }

  /** Names the transport; it must not deliver before. */
  attach(transport: Transport): void {
    this.#transport = transport;
  }

  /**
   * Runs an operation: `body` is entered at once, so messages leave in program order. Rejects with
   * the job's failure, at the latest after the call's timeout.
   */
  run(spec: CallSpec, body: (call: Call) => Promise<void>): Promise<Call> {
    const call = new Call(spec, this.#services);
    if (this.#failure !== undefined) {
      return Promise.reject(this.#errorFor(call, this.#failure));
    }
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => this.#onTimeout(call), spec.timeoutMs);
      const finish = () => {
        clearTimeout(timer);
        this.#active.delete(call);
        call.release();
        if (!isPointToPoint(spec.signature)) {
          const bySequence = this.#mailboxes.get(spec.group);
          bySequence?.get(spec.sequence)?.arrivals.clear();
          bySequence?.delete(spec.sequence - NUM_REMEMBERED);
        }
      };
      this.#active.set(call, (error) => {
        call.cancel();
        finish();
        reject(error);
      });
      if (!isPointToPoint(spec.signature) && !this.#admit(call)) {
        return; // it rejects when the inquiry ends
      }
      this.#start(call, body).then(
        () => {
          if (this.#active.has(call)) {
            finish();
            resolve(call);
          }
        },
        (error) => this.#onBodyFailed(call, error),
      );
    });
  }

  /** Ends all groups, here and (unless it came from there) on all peers. See Note [one failure]. */
  fail(failure: Failure): void {
    if (this.#failure !== undefined) {
      return;
    }
    this.#end(failure);
    for (let peer = 0; peer < this.worldSize; peer++) {
      if (peer !== this.rank && !this.#left.has(peer)) {
        this.#transport!.sendControl(peer, { type: 'failure', failure });
      }
    }
    void this.#transport!.close('drop');
  }

  /** Leaves the job: pending and later calls reject here; peers fail only if they need this rank. */
  async close(): Promise<void> {
    if (this.#failure === undefined) {
      this.#end({ kind: 'closed', origin: this.rank, reason: 'closed' });
      await this.#transport!.close('drain');
    }
  }

  /** Drops all links without a word, as a killed process would. For tests. */
  terminate(): void {
    this.#end({ kind: 'closed', origin: this.rank, reason: 'terminated' });
    this.#transport!.terminate();
  }

  onMessage(from: number, header: MessageHeader): MessageSink {
    if (this.#failure !== undefined) {
      return DISCARD;
    }
    if (isPointToPoint(header.call)) {
      return this.#onPointToPoint(from, header);
    }
    const mailbox = this.#mailboxOf(header.group, header.sequence);
    const arrival = this.#inMailbox(mailbox, from, header.phase);
    if (arrival.header !== undefined) {
      this.#lose(from, `it sent a message of ${describeHeader(header)} twice`);
      return DISCARD;
    }
    const call = mailbox.call;
    if (call !== undefined && !isSameCall(call.spec.signature, header.call)) {
      const calls = [{ rank: from, call: describeHeader(header) }];
      this.#inquire(header.group, header.sequence, call.spec.members, call, calls);
      return DISCARD;
    }
    if (arrival.expectedBytes !== undefined && arrival.expectedBytes !== header.byteLength) {
      this.#lose(from, `it sent ${header.byteLength} bytes in ${describeHeader(header)}`);
      return DISCARD;
    }
    arrival.begin(header);
    return arrival;
  }

  onControl(_from: number, message: ControlMessage): void {
    if (this.#failure !== undefined) {
      return;
    }
    if (message.type === 'failure') {
      this.fail(message.failure);
      return;
    }
    const own = this.#mailboxes.get(message.group)?.get(message.sequence)?.call;
    this.#inquire(message.group, message.sequence, message.members, own, message.calls);
  }

  onPeerLost(peer: number, reason: string): void {
    this.#lose(peer, reason);
  }

  onPeerLeft(peer: number): void {
    this.#left.add(peer);
    for (const call of this.#active.keys()) {
      if (call.waitingFor().includes(peer)) {
        this.#lose(peer, 'it closed the group');
        return;
      }
    }
  }

  // ------------------------------------------------------------------ matching

  #mailboxOf(group: string, sequence: number): Mailbox {
    let bySequence = this.#mailboxes.get(group);
    if (bySequence === undefined) {
      bySequence = new Map();
      this.#mailboxes.set(group, bySequence);
    }
    let mailbox = bySequence.get(sequence);
    if (mailbox === undefined) {
      mailbox = { call: undefined, arrivals: new Map() };
      bySequence.set(sequence, mailbox);
    }
    return mailbox;
  }

  #inMailbox(mailbox: Mailbox, from: number, phase: number): Arrival {
    const key = from * PHASES + phase;
    let arrival = mailbox.arrivals.get(key);
    if (arrival === undefined) {
      arrival = new Arrival(this.#scratch);
      mailbox.arrivals.set(key, arrival);
    }
    return arrival;
  }

  #arrivalOf(call: Call, from: number, phase: number): Arrival {
    const { group, sequence, signature } = call.spec;
    if (!isPointToPoint(signature)) {
      return this.#inMailbox(this.#mailboxOf(group, sequence), from, phase);
    }
    const channel = this.#channelOf(group, from, sequence);
    const waiting = channel.find((arrival) => !arrival.isPosted);
    const arrival = waiting ?? new Arrival(this.#scratch);
    if (waiting === undefined) {
      channel.push(arrival);
    } else if (waiting.header !== undefined) {
      this.#checkLength(call, from, waiting.header);
      channel.splice(channel.indexOf(waiting), 1);
    }
    return arrival;
  }

  #channelOf(group: string, from: number, channel: number): Arrival[] {
    const key = `${group}/${from}/${channel}`;
    let list = this.#channels.get(key);
    if (list === undefined) {
      list = [];
      this.#channels.set(key, list);
    }
    return list;
  }

  #onPointToPoint(from: number, header: MessageHeader): MessageSink {
    const channel = this.#channelOf(header.group, from, header.sequence);
    const waiting = channel.find((arrival) => arrival.header === undefined);
    const arrival = waiting ?? new Arrival(this.#scratch);
    if (waiting === undefined) {
      channel.push(arrival);
    } else {
      channel.splice(channel.indexOf(waiting), 1);
      const call = this.#callOf(waiting);
      if (call !== undefined) {
        this.#checkLength(call, from, header);
      }
    }
    if (this.#failure !== undefined) {
      return DISCARD;
    }
    arrival.begin(header);
    return arrival;
  }

  #callOf(arrival: Arrival): Call | undefined {
    return [...this.#active.keys()].find((call) => call.owns(arrival));
  }

  /** A receiver that names another size or dtype than the sender: both ranks are told. */
  #checkLength(call: Call, from: number, header: MessageHeader): void {
    const { byteLength, dtype } = call.spec.signature;
    if (header.byteLength !== byteLength || header.call.dtype !== dtype) {
      const calls = [
        { rank: from, call: describeHeader(header) },
        { rank: this.rank, call: call.description },
      ];
      this.fail({ kind: 'mismatch', origin: this.rank, reason: 'send and recv differ', calls });
    }
  }

  #afterPost(from: number, arrival: Arrival): void {
    if (this.#left.has(from) && !arrival.isComplete) {
      this.#lose(from, 'it closed the group');
    }
  }

  // ---------------------------------------------------------------- mismatches

  /** Puts a call into its mailbox; false where what has arrived already is of another call. */
  #admit(call: Call): boolean {
    const { group, sequence, signature, members } = call.spec;
    const mailbox = this.#mailboxOf(group, sequence);
    mailbox.call = call;
    const arrived = [...mailbox.arrivals].flatMap(([key, { header }]) =>
      header === undefined ? [] : [{ rank: Math.floor(key / PHASES), header }],
    );
    const isSame = arrived.every(({ header }) => isSameCall(signature, header.call));
    if (!isSame || this.#inquiry?.isAbout(group, sequence)) {
      const calls = arrived.map(({ rank, header }) => ({ rank, call: describeHeader(header) }));
      this.#inquire(group, sequence, members, call, calls);
    }
    return isSame;
  }

  /** Begins or continues the inquiry into what each rank called: what is found ends the job. */
  #inquire(
    group: string,
    sequence: number,
    members: readonly number[],
    own: Call | undefined,
    heard: readonly PeerCall[],
  ): void {
    this.#inquiry ??= new MismatchInquiry({
      group,
      sequence,
      members,
      onDone: (calls) =>
        this.fail({ kind: 'mismatch', origin: this.rank, reason: 'ranks disagree', calls }),
    });
    if (!this.#inquiry.isAbout(group, sequence)) {
      return; // one is enough to end the job
    }
    if (own !== undefined && !this.#inquiry.hasHeard(this.rank)) {
      const calls = [{ rank: this.rank, call: own.description }];
      this.#inquiry.add(calls);
      for (const peer of members) {
        // In one process peers answer at once, and the job may be over before all were asked.
        if (peer !== this.rank && this.#failure === undefined) {
          this.#transport!.sendControl(peer, { type: 'mismatch', group, sequence, members, calls });
        }
      }
    }
    this.#inquiry.add(heard);
  }

  // ------------------------------------------------------------------ failures

  async #start(call: Call, body: (call: Call) => Promise<void>): Promise<void> {
    await body(call);
  }

  #lose(peer: number, reason: string): void {
    this.fail({ kind: 'peer-lost', origin: peer, reason });
  }

  #onTimeout(call: Call): void {
    const waitingFor = call.waitingFor();
    const whom = waitingFor.length === 0 ? 'its own sends' : `ranks ${waitingFor.join(', ')}`;
    const reason = `${call.description} timed out after ${call.spec.timeoutMs} ms waiting for ${whom}`;
    this.fail({ kind: 'timeout', origin: this.rank, reason, waitingFor });
  }

  /** A body rejects when a link broke under a send, or through a bug: both end the job. */
  #onBodyFailed(call: Call, error: unknown): void {
    if (!this.#active.has(call)) {
      return;
    }
    const reason = error instanceof Error ? error.message : String(error);
    this.fail({ kind: 'aborted', origin: this.rank, reason });
  }

  #end(failure: Failure): void {
    if (this.#failure !== undefined) {
      return;
    }
    this.#failure = failure;
    this.#inquiry?.stop();
    const active = [...this.#active];
    this.#active.clear();
    for (const [call, reject] of active) {
      reject(this.#errorFor(call, failure));
    }
    this.#mailboxes.clear();
    this.#channels.clear();
    this.#scratch.clear();
    this.#onFailed(failure);
  }

  #errorFor(call: Call, failure: Failure): CollectiveError {
    return errorOfFailure(failure, this.#placeOf(call.spec));
  }

  /** For arguments that are wrong in themselves. */
  usageError(call: string, message: string): CollectiveUsageError {
    return new CollectiveUsageError({ rank: this.rank, worldSize: this.worldSize, call }, message);
  }

  #placeOf(spec: CallSpec) {
    const number = isPointToPoint(spec.signature) ? 'tag ' : '#';
    const group = spec.group === 'world' ? '' : ` in group ${spec.group}`;
    const call = `${spec.signature.operation} ${number}${spec.sequence}${group}`;
    return { rank: this.rank, worldSize: this.worldSize, call };
  }
}

function describeHeader(header: MessageHeader): string {
  return describeCall(header.call, header.sequence);
}
