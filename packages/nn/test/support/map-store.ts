// This is the smallest store in which a flat can be at home. A test sees its calls and can make
// them fail.

import type { ByteStore } from '@shardweave/nn/flat';

export class MapStore implements ByteStore {
  readonly locals = new Map<symbol, unknown>();
  readonly values = new Map<string, Uint8Array>();
  /** The calls in order: 'write key', 'read key' and 'commit'. */
  readonly calls: string[] = [];
  /** Whether a call is to reject. */
  failing: (call: string) => boolean = () => false;

  keys(): readonly string[] {
    return [...this.values.keys()];
  }

  byteLength(key: string): number | undefined {
    return this.values.get(key)?.byteLength;
  }

  async write(key: string, bytes: Uint8Array): Promise<void> {
    this.#note(`write ${key}`);
    this.values.set(key, bytes.slice());
  }

  async read(key: string, into: Uint8Array, { offset = 0 } = {}): Promise<void> {
    this.#note(`read ${key}`);
    into.set(this.values.get(key)!.subarray(offset, offset + into.byteLength));
  }

  async delete(key: string): Promise<void> {
    this.values.delete(key);
  }

  async withdraw(key: string): Promise<void> {
    this.#note(`withdraw ${key}`);
  }

  async commit(): Promise<void> {
    this.#note('commit');
  }

  #note(call: string): void {
    this.calls.push(call);
    if (this.failing(call)) {
      throw new Error(`refused: ${call}`);
    }
  }
}
