// How long a device takes for the kernels of a step: each kind and shape of call is timed once, on
// memory of its own, so that no rate of one shape has to stand for another.

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
 * Calls repeat until they have taken so long: what starts and ends a queue is then below a tenth of
 * it.
 */
const TIMED_MS = 4;
const MOST_REPEATS = 64;
/**
 * Beyond these a part of the call is timed: a plan of large rows takes no longer than one of small
 * ones.
 */
const MOST_PRODUCTS = 4e8;
const MOST_ELEMENTS = 2 ** 20;

export class KernelTimes {
  readonly #device: Device;
  readonly #known = new Map<string, number>();

  constructor(backend: Backend) {
    this.#device = new Device(backend);
  }

  /** Milliseconds of all of them, one after the other. */
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
        return 0; // what has no room here is not run here
      }
      throw error;
    } finally {
      for (const storage of storages.values()) {
        storage.release();
      }
    }
  }

  /** Memory of its own, the same for views that begin at one place. */
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

/** What is timed of a call, and how often that goes into the whole. */
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
  if ('segments' in whole) {
    const { segments } = whole;
    const total = segments.reduce((sum, { length }) => sum + length, 0);
    const length = Math.min(total, MOST_ELEMENTS);
    const call = { ...whole, segments: [{ start: 0, length, group: segments[0]?.group ?? 0 }] };
    return { call: shortened(call, length), times: length === 0 ? 0 : total / length };
  }
  if (kernel === 'normNodes') {
    const call = whole as KernelCalls['normNodes'];
    const total = call.spans.reduce((sum, { length }) => sum + length, 0);
    const length = Math.min(total, MOST_ELEMENTS);
    const spans = [{ start: 0, length }];
    return { call: { ...shortened(call, length), spans }, times: total / length };
  }
  const views = Object.values(whole).filter(isView);
  const [{ size = 0 } = {}] = views;
  if (FLAT.has(kernel) && size > MOST_ELEMENTS && views.every((view) => view.size === size)) {
    return { call: shortened(whole, MOST_ELEMENTS), times: size / MOST_ELEMENTS };
  }
  return { call: whole, times: 1 };
}

/** Kernels whose views say how much there is to do. */
const FLAT: ReadonlySet<KernelName> = new Set(['fill', 'cast', 'affine']);

function shortened<T extends object>(call: T, size: number): T {
  return withViews(call, (view) => ({ ...view, size: Math.min(view.size, size) })) as T;
}

/** The call with other views, in fields and fields of fields. */
function withViews(value: unknown, change: (view: View) => View): unknown {
  if (isView(value)) {
    return change(value);
  }
  if (Array.isArray(value)) {
    return value.some((each) => typeof each === 'object')
      ? value.map((each) => withViews(each, change))
      : value;
  }
  if (typeof value !== 'object' || value === null) {
    return value;
  }
  return Object.fromEntries(
    Object.entries(value).map(([name, each]) => [name, withViews(each, change)]),
  );
}

export function isView(value: unknown): value is View {
  return typeof value === 'object' && value !== null && 'buffer' in value && 'dtype' in value;
}

/** Where a call works, and what it draws: no work of its own. */
const PLACES: ReadonlySet<string> = new Set([
  ...['buffer', 'byteOffset', 'key0', 'key1', 'counterOffset', 'spans', 'segments'],
]);

/** Equal for calls that do the same work. */
export function keyOfCall(kernel: KernelName, call: object): string {
  const text = JSON.stringify(call, (name, value: unknown) =>
    PLACES.has(name) ? undefined : value,
  );
  return `${kernel} ${text}`;
}
