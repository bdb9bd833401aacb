// Tells how long a device takes for the kernels of a step: each kind and shape of call is timed
// once, on memory of its own, so that no shape is estimated from another's rate.

import {
  type Backend,
  Device,
  type KernelCalls,
  type KernelName,
  LimitError,
  type Storage,
  type View,
} from '@shardweave/tensor-core';

/** Calls of one kind and shape. */
export interface TalliedCall {
  readonly kernel: KernelName;
  readonly call: KernelCalls[KernelName];
  readonly count: number;
}

/** The calls of a step by kind and shape. */
export type KernelTally = ReadonlyMap<string, TalliedCall>;

/**
 * The milliseconds for which a call is repeated: the cost of starting and ending a queue is then
 * below a tenth.
 */
const TIMED_MS = 4;
const MOST_REPEATS = 64;
/**
 * For larger calls only a part is timed, so that a plan of large rows takes no longer than one of
 * small ones.
 */
const MOST_PRODUCTS = 4e8;
const MOST_ELEMENTS = 2 ** 20;

export class KernelTimes {
  readonly #device: Device;
  readonly #known = new Map<string, number>();

  constructor(backend: Backend) {
    this.#device = new Device(backend);
  }

  /** The milliseconds of all calls, one after another. */
  async ms(tally: KernelTally): Promise<number> {
    let sum = 0;
    for (const [key, { kernel, call, count }] of tally) {
      let ms = this.#known.get(key);
      if (ms === undefined) {
        ms = await this.#measure(kernel, call);
        this.#known.set(key, ms);
      }
      sum += count * ms;
    }
    return sum;
  }

  dispose(): void {
    this.#device.dispose();
  }

  async #measure(kernel: KernelName, whole: KernelCalls[KernelName]): Promise<number> {
    const device = this.#device;
    const { call, times } = partOf(kernel, whole);
    const storages = new Map<string, Storage>();
    try {
      const real = withViews(call, (view) => this.#viewOf(view, storages)) as typeof call;
      const run = async (repeats: number) => {
        const start = performance.now();
        for (let i = 0; i < repeats; i++) {
          device.run(kernel, real as never);
        }
        await device.synchronize();
        return (performance.now() - start) / repeats;
      };
      await device.synchronize();
      const first = await run(1); // compiles
      const repeats = Math.min(MOST_REPEATS, Math.ceil(TIMED_MS / first));
      const again = await run(repeats);
      return times * Math.min(first, again, repeats === 1 ? first : await run(repeats));
    } catch (error) {
      if (error instanceof LimitError) {
        return 0; // it has no room here, so it is not run here
      }
      throw error;
    } finally {
      for (const storage of storages.values()) {
        storage.release();
      }
    }
  }

  /** A view of memory of its own, the same for views that begin at one place. */
  #viewOf({ buffer, byteOffset, dtype, size }: View, storages: Map<string, Storage>): View {
    const key = `${buffer.id} ${byteOffset}`;
    let storage = storages.get(key);
    if (storage === undefined || storage.elementCount < size) {
      const made = this.#device.storage(size, dtype, 'staging');
      made.fill();
      this.#device.run('fill', { out: made.view(), value: 0 });
      storages.set(storage === undefined ? key : `${key} ${size}`, made);
      storage = made;
    }
    return { ...storage.view(), dtype, size };
  }
}

/** The part of a call that is timed, and how often it goes into the whole. */
export function partOf(
  kernel: KernelName,
  whole: KernelCalls[KernelName],
): { readonly call: KernelCalls[KernelName]; readonly times: number } {
  if (kernel === 'matmul') {
    const call = whole as KernelCalls['matmul'];
    const { m, n, k, batch } = call;
    const products = m * n * k * batch[0] * batch[1];
    const rows = Math.min(m, Math.max(64, Math.floor((m * MOST_PRODUCTS) / products)));
    return { call: { ...call, m: rows }, times: m / rows };
  }
  if (kernel === 'attention' || kernel === 'attentionBackward') {
    const call = whole as KernelCalls['attention'];
    const { batch, numHeads, numQueries, numKeys, dim } = call;
    const products = batch * numHeads * numQueries * numKeys * dim;
    const parts = Math.max(1, Math.min(batch, Math.floor((batch * MOST_PRODUCTS) / products)));
    return { call: { ...call, batch: parts }, times: batch / parts };
  }
  const spans = kernel === 'normNodes' ? (whole as KernelCalls['normNodes']).spans : undefined;
  const parts = 'segments' in whole ? whole.segments : spans;
  if (parts !== undefined) {
    const total = parts.reduce((sum, { length }) => sum + length, 0);
    const length = Math.min(total, MOST_ELEMENTS);
    const name = 'segments' in whole ? 'segments' : 'spans';
    const call = { ...shortened(whole, length), [name]: [{ ...parts[0], start: 0, length }] };
    return { call, times: length === 0 ? 0 : total / length };
  }
  const views = Object.values(whole).filter(isView);
  const [{ size = 0 } = {}] = views;
  if (FLAT.has(kernel) && size > MOST_ELEMENTS && views.every((view) => view.size === size)) {
    return { call: shortened(whole, MOST_ELEMENTS), times: size / MOST_ELEMENTS };
  }
  return { call: whole, times: 1 };
}

/** The kernels whose views tell how much work there is. */
const FLAT: ReadonlySet<KernelName> = new Set(['fill', 'cast', 'affine']);

function shortened<T extends object>(call: T, size: number): T {
  return withViews(call, (view) => ({ ...view, size: Math.min(view.size, size) })) as T;
}

/** The call with other views, at any depth of its fields. */
function withViews(value: unknown, change: (view: View) => View): unknown {
  if (isView(value)) {
    return change(value);
  }
  if (Array.isArray(value)) {
    return value.some((item) => typeof item === 'object')
      ? value.map((item) => withViews(item, change))
      : value;
  }
  if (typeof value !== 'object' || value === null) {
    return value;
  }
  return Object.fromEntries(
    Object.entries(value).map(([name, field]) => [name, withViews(field, change)]),
  );
}

function isView(value: unknown): value is View {
  return typeof value === 'object' && value !== null && 'buffer' in value && 'dtype' in value;
}

/** The fields that tell where a call works and what it draws, but don't change its work. */
const PLACES: ReadonlySet<string> = new Set([
  ...['buffer', 'byteOffset', 'key0', 'key1', 'counterOffset', 'spans', 'segments'],
]);

/** A key that is equal for calls that do the same work. */
export function keyOfCall(kernel: KernelName, call: object): string {
  const text = JSON.stringify(call, (name, value: unknown) =>
    PLACES.has(name) ? undefined : value,
  );
  return `${kernel} ${text}`;
}
