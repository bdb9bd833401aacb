// A message of Protocol Buffers, the encoding of ONNX files and of TensorBoard's. A field is its
// number with a wire type, then its value: an integer of variable length, a float of 32 or 64 bits,
// or bytes behind their length, which texts and other messages are, too.

/** Bytes whose number is known before they are. */
export interface StreamedBytes {
  readonly byteLength: number;
  /** The bytes in order. */
  pieces(): AsyncIterable<Uint8Array> | Iterable<Uint8Array>;
}

const VARINT = 0;
const FIXED_64 = 1;
const LENGTH_DELIMITED = 2;
const FIXED_32 = 5;

/** A message that is written field by field, in the order of the calls. */
export class ProtoMessage implements StreamedBytes {
  readonly #parts: (Uint8Array | StreamedBytes)[] = [];
  #byteLength = 0;

  /** Writes an integer of up to 64 bits. A negative one takes ten bytes, as an int64 does. */
  integer(field: number, value: number): this {
    return this.#tag(field, VARINT).#add(varint(value));
  }

  /** Writes a float of 32 bits. */
  float(field: number, value: number): this {
    const bytes = new Uint8Array(4);
    new DataView(bytes.buffer).setFloat32(0, value, true);
    return this.#tag(field, FIXED_32).#add(bytes);
  }

  /** Writes a float of 64 bits. */
  double(field: number, value: number): this {
    const bytes = new Uint8Array(8);
    new DataView(bytes.buffer).setFloat64(0, value, true);
    return this.#tag(field, FIXED_64).#add(bytes);
  }

  /** Writes a text in UTF-8. */
  text(field: number, value: string): this {
    return this.nested(field, new TextEncoder().encode(value));
  }

  /** Writes bytes, or a message that is complete: its length is written before it. */
  nested(field: number, value: Uint8Array | StreamedBytes): this {
    return this.#tag(field, LENGTH_DELIMITED).#add(varint(value.byteLength)).#add(value);
  }

  get byteLength(): number {
    return this.#byteLength;
  }

  /** Its bytes in order. What is streamed is asked for when its turn comes. */
  async *pieces(): AsyncGenerator<Uint8Array, void, undefined> {
    let small: Uint8Array[] = [];
    for (const part of this.#leaves()) {
      if (part instanceof Uint8Array) {
        small.push(part);
        continue;
      }
      yield joined(small);
      small = [];
      yield* part.pieces();
    }
    yield joined(small);
  }

  /**
   * Its bytes at once.
   * @throws {TypeError} where some of them are streamed
   */
  bytes(): Uint8Array {
    return joined(
      [...this.#leaves()].map((part) => {
        if (!(part instanceof Uint8Array)) {
          throw new TypeError('ProtoMessage.bytes: a part is streamed. Use pieces() for it.');
        }
        return part;
      }),
    );
  }

  *#leaves(): Generator<Uint8Array | StreamedBytes, void, undefined> {
    for (const part of this.#parts) {
      if (part instanceof ProtoMessage) {
        yield* part.#leaves();
      } else {
        yield part;
      }
    }
  }

  #tag(field: number, wireType: number): this {
    return this.#add(varint(field * 8 + wireType));
  }

  #add(part: Uint8Array | StreamedBytes): this {
    this.#parts.push(part);
    this.#byteLength += part.byteLength;
    return this;
  }
}

/** Seven bits a byte, the lowest first. The eighth bit says that another byte follows. */
function varint(value: number): Uint8Array {
  const bytes: number[] = [];
  let rest = BigInt.asUintN(64, BigInt(value));
  while (rest > 0x7fn) {
    bytes.push(Number(rest & 0x7fn) | 0x80);
    rest >>= 7n;
  }
  bytes.push(Number(rest));
  return Uint8Array.from(bytes);
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
