// One running operation of one rank: what an algorithm sees of the wire. Peers are group ranks here
// and world ranks below.

import type { ReduceOptions, Reducer } from '@shardweave/dtypes';
import type { Arrival } from './arrival.js';
import { type CallSignature, describeCall } from './call-signature.js';
import type { ScratchPool } from './scratch-pool.js';
import type { Transport } from './transport.js';

/** A call and its place; `members` are world ranks in group order. */
export interface CallSpec {
  readonly group: string;
  readonly members: readonly number[];
  /** Group rank. */
  readonly rank: number;
  readonly sequence: number;
  readonly signature: CallSignature;
  readonly timeoutMs: number;
}

/** What a call needs of its endpoint. */
export interface CallServices {
  readonly transport: Transport;
  readonly scratch: ScratchPool;
  reducer(): Promise<Reducer>;
  /** The meeting point of a message from a world rank with its receiver. */
  arrivalOf(call: Call, from: number, phase: number): Arrival;
  /** Told after each `receive`: the peer may have left already. */
  afterPost(from: number, arrival: Arrival): void;
}

export class Call {
  readonly spec: CallSpec;
  readonly #services: CallServices;
  readonly #receives: { readonly from: number; readonly arrival: Arrival }[] = [];
  bytesSent = 0;
  bytesReceived = 0;

  constructor(spec: CallSpec, services: CallServices) {
    this.spec = spec;
    this.#services = services;
  }

  get rank(): number {
    return this.spec.rank;
  }

  get worldSize(): number {
    return this.spec.members.length;
  }

  get scratch(): ScratchPool {
    return this.#services.scratch;
  }

  get description(): string {
    return describeCall(this.spec.signature, this.spec.sequence);
  }

  /** Other group ranks, beginning after one's own, so that not all start with the same. */
  get peers(): number[] {
    const size = this.worldSize;
    return Array.from({ length: size - 1 }, (_, i) => (this.rank + 1 + i) % size);
  }

  /** Lends `payload` until it resolves. */
  send(peer: number, payload: Uint8Array, phase = 0): Promise<void> {
    const { group, sequence, signature, members } = this.spec;
    this.bytesSent += payload.byteLength;
    return this.#services.transport.send(
      members[peer]!,
      { group, sequence, phase, call: signature, byteLength: payload.byteLength },
      payload,
    );
  }

  /** Resolves when the peer's message of this call and phase fills `target`. */
  receive(peer: number, target: Uint8Array, phase = 0): Promise<void> {
    const from = this.spec.members[peer]!;
    const arrival = this.#services.arrivalOf(this, from, phase);
    this.bytesReceived += target.byteLength;
    this.#receives.push({ from, arrival });
    const done = arrival.post(target);
    this.#services.afterPost(from, arrival);
    return done;
  }

  /** Combines parts of all ranks, in rank order, into `output`. */
  async reduce(
    parts: readonly Uint8Array[],
    output: Uint8Array,
    options: ReduceOptions,
  ): Promise<void> {
    const reducer = await this.#services.reducer();
    await reducer.reduce(parts, output, options);
  }

  /** World ranks whose messages have been asked for and are not complete. */
  waitingFor(): number[] {
    const missing = this.#receives.filter(({ arrival }) => !arrival.isComplete);
    return [...new Set(missing.map(({ from }) => from))].sort((a, b) => a - b);
  }

  owns(arrival: Arrival): boolean {
    return this.#receives.some((receive) => receive.arrival === arrival);
  }

  /** Forgets the caller's buffers: the call is over, only its description is kept. */
  release(): void {
    this.#receives.length = 0;
  }

  /** Gives the caller's buffers back: nothing is written to them any more. */
  cancel(): void {
    for (const { arrival } of this.#receives) {
      arrival.cancel();
    }
  }
}
