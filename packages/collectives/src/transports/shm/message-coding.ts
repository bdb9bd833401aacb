// Encodes message headers for a ring: the part that repeats (group and signature of the call) is
// sent once, as JSON in a frame of its own, and later named by a number.

import type { CallSignature } from '../../call-signature.js';
import type { MessageHeader } from '../../transport.js';
import type { FrameHead } from './ring.js';

/** The kinds of frames. */
export const FRAME = {
  DESCRIBE: 1, // the body is a group and signature, `description` its number
  INLINE: 2, // a message with its payload
  EAGER: 3, // a message whose chunks follow
  OFFER: 4, // a message whose chunks wait for GRANT
  LENT: 5, // a message whose payload the receiver may read at bufferId, offset
  CHUNK: 6, // the next bytes of message `id`
  GRANT: 7, // send the chunks of message `id`
  READ: 8, // message `id` has been read where it was
} as const;

/** The number of descriptions that both ends keep; one more overwrites the oldest. */
const NUM_DESCRIPTIONS = 512;

const FIELDS = Object.keys({
  operation: true,
  dtype: true,
  reduceOp: true,
  byteLength: true,
  root: true,
  layout: true,
} satisfies Record<keyof CallSignature, true>) as (keyof CallSignature)[];

interface Description {
  readonly group: string;
  readonly call: CallSignature;
}

/** The writer's side of one pair. */
export class HeaderEncoder {
  /** Numbers by group and signature; a Map keeps the order in which they came. */
  readonly #numbers = new Map<string, number>();
  #next = 0;
  #lastCall: CallSignature | undefined;
  #lastGroup = '';
  #lastNumber = 0;

  /**
   * Fills `head` with the message's header. Returns its description where that is new: it must be
   * written before, under the number `head.description`.
   */
  encode(header: MessageHeader, head: FrameHead): Uint8Array | undefined {
    head.sequence = header.sequence;
    head.phase = header.phase;
    head.byteLength = header.byteLength;
    const { group, call } = header;
    if (call === this.#lastCall && group === this.#lastGroup) {
      head.description = this.#lastNumber; // the next peer's message, or the next phase's
      return undefined;
    }
    const key = keyOf(group, call);
    const known = this.#numbers.get(key);
    const number = known ?? this.#next++ % NUM_DESCRIPTIONS;
    this.#lastCall = call;
    this.#lastGroup = group;
    this.#lastNumber = number;
    head.description = number;
    if (known !== undefined) {
      return undefined;
    }
    if (this.#numbers.size === NUM_DESCRIPTIONS) {
      this.#numbers.delete(this.#numbers.keys().next().value!); // the one that had this number
    }
    this.#numbers.set(key, number);
    return new TextEncoder().encode(JSON.stringify({ group, call } satisfies Description));
  }
}

/** The reader's side. */
export class HeaderDecoder {
  readonly #descriptions: Description[] = [];

  define(number: number, json: Uint8Array): void {
    // TextDecoder does not take shared memory.
    this.#descriptions[number] = JSON.parse(new TextDecoder().decode(json.slice()));
  }

  decode(head: FrameHead): MessageHeader {
    const { group, call } = this.#descriptions[head.description]!;
    const { sequence, phase, byteLength } = head;
    return { group, sequence, phase, call, byteLength };
  }
}

/**
 * The key of a description. It takes less time than JSON, which would be a tenth of a small call's.
 */
function keyOf(group: string, call: CallSignature): string {
  let key = group;
  for (const field of FIELDS) {
    key += `|${call[field]}`;
  }
  return key;
}
