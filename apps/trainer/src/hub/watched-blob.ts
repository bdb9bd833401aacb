// A blob that tells how much of it has been read, which is how much of a request's body has been
// sent. Only a body that is a blob has a length that is told before it, and storage wants one.

export class WatchedBlob extends Blob {
  readonly #blob: Blob;
  readonly #onBytes: (bytes: number) => void;

  constructor(blob: Blob, onBytes: (bytes: number) => void) {
    super([], { type: blob.type });
    this.#blob = blob;
    this.#onBytes = onBytes;
  }

  override get size(): number {
    return this.#blob.size;
  }

  override stream(): ReturnType<Blob['stream']> {
    const counter = new TransformStream<Uint8Array, Uint8Array>({
      transform: (piece, to) => {
        this.#onBytes(piece.byteLength);
        to.enqueue(piece);
      },
    });
    return this.#blob.stream().pipeThrough(counter) as ReturnType<Blob['stream']>;
  }

  override arrayBuffer(): Promise<ArrayBuffer> {
    return this.#blob.arrayBuffer();
  }
}
