// The bytes behind tensors: an identity that outlives its buffer. Sharding frees a storage after
// use and fills it again before the next; whoever refers to the storage sees the new contents.

import { byteSize, type DType } from '@shardweave/dtypes';
import type { Device } from '../device.js';
import { DisposedError, ShapeError, StateError } from '../errors.js';
import type { BackendBuffer, View } from '../view.js';
import { Changes, type ElementRun } from './changes.js';
import type { HostBlock } from './host-blocks.js';
import type { MemoryTag } from './ledger.js';
import { StorageReader } from './storage-reader.js';

/** Returns the bytes of `elementCount` elements on a device: whole 32-bit words, at least one. */
export function storageBytes(elementCount: number, dtype: DType): number {
  return Math.max(4, Math.ceil((elementCount * byteSize(dtype)) / 4) * 4);
}

const NO_READERS: ReadonlySet<StorageReader> = new Set();

/** The buffer of a storage. */
interface HeldBuffer {
  readonly buffer: BackendBuffer;
  /** Whether the ledger counts it, as it does all but what is borrowed. */
  readonly isCounted: boolean;
  readonly giveBack: () => void;
}

/**
 * The elements of one dtype on one device, with or without a buffer at the moment. Holders (an
 * owner, a scope, a graph node) call retain and release; the last release frees the buffer for
 * good. Before that, `free` and `fill` may drop the buffer and take another any number of times,
 * while all who refer to the storage keep referring to the same object.
 */
export class Storage {
  readonly device: Device;
  readonly dtype: DType;
  readonly elementCount: number;
  /** The bytes on the device when filled, which the ledger counts. */
  readonly byteLength: number;
  #tag: MemoryTag;
  #held: HeldBuffer | undefined;
  /**
   * The hint at the end of the error that a use without a buffer throws. Default: advice for
   * sharded parameters.
   */
  absentHint: string | undefined = undefined;
  #holds = 1;
  /**
   * The changes of its values, which graphs that saved them look at. Unlike `version` they leave
   * out what `refill` writes, and count what `markOutdated` tells.
   * @internal
   */
  readonly changes = new Changes();
  /** The open readers. There is no set before the first, since most storages are never read so. */
  #readers: Set<StorageReader> | undefined;
  #isReleased = false;

  /** Called by Device.storage. The storage has no buffer until `fill`; its maker holds it first. */
  constructor(device: Device, elementCount: number, dtype: DType, tag: MemoryTag) {
    requireLive('storage', device);
    this.device = device;
    this.dtype = dtype;
    this.elementCount = elementCount;
    this.byteLength = storageBytes(elementCount, dtype);
    this.#tag = tag;
  }

  get tag(): MemoryTag {
    return this.#tag;
  }

  set tag(tag: MemoryTag) {
    if (this.isFilled && this.#held!.isCounted) {
      this.device.ledger.move(this.#tag, tag, this.byteLength);
    }
    this.#tag = tag;
  }

  /** Whether a buffer is present. */
  get isFilled(): boolean {
    return this.#held !== undefined && !this.device.isDisposed;
  }

  /** The number of in-place changes that were noted. A copy made at another number is stale. */
  get version(): number {
    return this.changes.version;
  }

  /**
   * Notes that its contents changed in place, so that copies made before are stale and a graph that
   * saved these elements refuses its backward.
   * @param by who changed them, for that error, such as 'AdamW.step'
   * @param runs which elements changed. Default: all.
   */
  markWritten(
    by = 'a write',
    runs: readonly ElementRun[] = [{ start: 0, length: this.elementCount }],
  ): void {
    this.changes.written(by, runs);
  }

  /**
   * Notes that values of which this storage is filled with copies changed where they rest, as a
   * step does to the shard that a whole parameter is gathered from. The contents themselves stay.
   */
  markOutdated(by: string, runs: readonly ElementRun[]): void {
    this.changes.note(by, runs);
  }

  /**
   * Runs `bring`, which fills the storage and brings back the values that it held before. Its
   * writes are therefore no changes to a graph that saved them.
   */
  refill<T>(bring: () => T): T {
    return this.changes.refill(bring);
  }

  /** The number of holders. */
  get holds(): number {
    return this.#holds;
  }

  /** Takes a buffer of undefined contents from the pool, unless the storage has one. */
  fill(): void {
    if (this.#isReleased) {
      throw new DisposedError('storage.fill: the storage was released.');
    }
    requireLive('storage.fill', this.device);
    if (this.#held !== undefined) {
      return;
    }
    const { pool, ledger } = this.device;
    const buffer = pool.take(this.byteLength, this.#tag);
    this.#held = { buffer, isCounted: true, giveBack: () => this.device.pool.give(buffer) };
    ledger.add(this.#tag, this.byteLength);
  }

  /**
   * Fills the storage with a block, whose bytes become its values in place of those that it had.
   * The block is given back by `free`.
   */
  hold(block: HostBlock): void {
    requireLive('storage.hold', this.device);
    this.free();
    const { pool, ledger } = this.device;
    const giveBack = pool.blocks.hold(block);
    this.#held = { buffer: block.buffer, isCounted: true, giveBack };
    ledger.add(this.#tag, this.byteLength);
    this.markWritten('storage.hold');
  }

  /**
   * Fills the storage with a buffer of somebody else's, which neither pool nor ledger counts.
   * `free` calls `giveBack`.
   */
  borrow(buffer: BackendBuffer, giveBack: () => void): void {
    this.#held = { buffer, isCounted: false, giveBack };
  }

  /** Gives the buffer back to the pool. The contents are lost; the storage stays what it is. */
  free(): void {
    const held = this.#held;
    if (held === undefined) {
      return;
    }
    // A device that is disposed has given all its buffers back.
    if (!held.isCounted || !this.device.isDisposed) {
      held.giveBack();
    }
    if (held.isCounted && !this.device.isDisposed) {
      this.device.ledger.add(this.#tag, -this.byteLength);
    }
    this.#held = undefined;
  }

  retain(): void {
    if (this.#isReleased) {
      throw new DisposedError('storage.retain: the storage was released.');
    }
    this.#holds += 1;
  }

  /** Gives up one hold. The last release frees the buffer for good; further ones do nothing. */
  release(): void {
    if (this.#isReleased) {
      return;
    }
    this.#holds -= 1;
    if (this.#holds > 0) {
      return;
    }
    this.free();
    this.#isReleased = true;
  }

  /**
   * Returns the elements [offset, offset + size) as a backend takes them.
   * @throws {StateError} when the storage holds no buffer at the moment.
   */
  view(offset = 0, size = this.elementCount - offset): View {
    const buffer = this.#present();
    return { buffer, byteOffset: offset * byteSize(this.dtype), dtype: this.dtype, size };
  }

  /**
   * Uploads bytes to `byteOffset`, a multiple of 4; the array may be reused at once. Devices write
   * words of 4 bytes, so a half word at the end is padded with zeros, which is allowed only at the
   * end of the storage.
   * @throws {ShapeError} for bytes that don't fit
   * @throws {StateError} while a reader is open
   */
  write(bytes: Uint8Array, byteOffset = 0): void {
    const buffer = this.#present();
    if (this.readers.size > 0) {
      throw new StateError(
        `storage.write: expected bytes that nobody reads in the background, got ${this.#tag} bytes that a save has not read yet. Await the save first.`,
      );
    }
    const end = byteOffset + bytes.byteLength;
    const isWhole = end % 4 === 0 || Math.ceil(end / 4) * 4 === this.byteLength;
    if (byteOffset % 4 !== 0 || byteOffset < 0 || end > this.byteLength || !isWhole) {
      throw new ShapeError(
        `storage.write: expected whole 32-bit words within ${this.byteLength} bytes, got bytes [${byteOffset}, ${end}). Start at a multiple of 4 and end at one, or at the storage's end.`,
      );
    }
    let padded = bytes;
    if (bytes.byteLength % 4 !== 0) {
      padded = new Uint8Array(Math.ceil(bytes.byteLength / 4) * 4);
      padded.set(bytes);
    }
    const elementBytes = byteSize(this.dtype);
    this.markWritten('storage.write', [
      { start: byteOffset / elementBytes, length: bytes.byteLength / elementBytes },
    ]);
    if (padded.byteLength > 0) {
      this.device.backend.write(buffer, byteOffset, padded);
    }
  }

  /** Reads `byteLength` bytes back once all work queued before has run. */
  async read(byteOffset = 0, byteLength = this.byteLength, into?: Uint8Array): Promise<Uint8Array> {
    return this.device.backend.read(this.#present(), byteOffset, byteLength, into);
  }

  /**
   * Begins to read the bytes as they are once all work queued so far has run. Later work may run
   * meanwhile, but nobody may change these bytes in place until the reader is closed.
   * @param settled the promise of a device.synchronize() called at this moment; several readers may
   * share one
   */
  openReader(settled = this.device.synchronize()): StorageReader {
    this.#readers ??= new Set();
    const readers = this.#readers;
    const onClose = () => void readers.delete(reader);
    const reader = new StorageReader(this, { settled, onClose });
    readers.add(reader);
    return reader;
  }

  /**
   * The open readers. Whoever changes the bytes in place, by a write or by a kernel, first awaits
   * `whenClosed` of each.
   */
  get readers(): ReadonlySet<StorageReader> {
    return this.#readers ?? NO_READERS;
  }

  #present(): BackendBuffer {
    requireLive('storage', this.device);
    if (this.#held !== undefined) {
      return this.#held.buffer;
    }
    throw this.#isReleased
      ? new DisposedError(
          'storage: its memory was freed. Keep the tensor by returning it from the scope that made it, or by tensor.keep().',
        )
      : new StateError(
          `storage: expected its ${this.byteLength} ${this.#tag} bytes to be present, but they are not on the device. ${this.absentHint ?? "A sharded parameter is readable inside its module's forward or summonFullParams."}`,
        );
  }
}

function requireLive(op: string, { isDisposed }: Device): void {
  if (isDisposed) {
    throw new DisposedError(`${op}: the device was disposed.`);
  }
}
