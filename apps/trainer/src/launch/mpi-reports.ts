// What ranks under mpirun tell rank 0, which has the role of the command there. These are the
// messages that rank processes send over IPC, here over a group of their own, so that they don't
// count as the training's.

import { deserialize, serialize } from 'node:v8';
import type { ProcessGroup } from '@shardweave/collectives';
import type { FromRank } from './messages.js';

/** Sends messages to rank 0, in order. */
export class MpiReporter {
  readonly #group: ProcessGroup;
  #last: Promise<void> = Promise.resolve();

  constructor(group: ProcessGroup) {
    this.#group = group;
  }

  send(message: FromRank): void {
    const bytes = serialize(message);
    const length = new Uint8Array(Uint32Array.of(bytes.byteLength).buffer);
    this.#last = this.#last
      .then(() => this.#group.send(length, { to: 0 }))
      .then(() => this.#group.send(bytes, { to: 0 }));
    this.#last.catch(() => {}); // whoever flushes hears of it
  }

  async flush(): Promise<void> {
    await this.#last;
  }
}

/** Receives, on rank 0, the messages of another rank until it is done or has failed. */
export async function receiveReports(
  group: ProcessGroup,
  from: number,
  onMessage: (message: FromRank) => void,
): Promise<void> {
  for (;;) {
    const length = new Uint32Array(1);
    await group.recv(new Uint8Array(length.buffer), { from });
    const bytes = new Uint8Array(length[0]!);
    await group.recv(bytes, { from });
    const message = deserialize(bytes) as FromRank;
    onMessage(message);
    if (message.type !== 'event') {
      return;
    }
  }
}
