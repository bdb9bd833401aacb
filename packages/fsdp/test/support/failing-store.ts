// This store in host memory fails on demand, as a full or broken disk does.

import { createHostStore, type ShardStore } from '@shardweave/shard-store';

/**
 * Returns a store whose calls reject with `code` where `fails` returns true, before they have done
 * anything.
 */
export function failingStore(
  code: 'FULL' | 'IO',
  fails: (operation: 'read' | 'write', key: string) => boolean,
): ShardStore {
  const store = createHostStore();
  const refuse = (operation: 'read' | 'write', key: string) => {
    if (fails(operation, key)) {
      throw Object.assign(new Error(`no ${operation}: ${key}`), { code });
    }
  };
  return new Proxy(store, {
    get: (target, name) => {
      if (name === 'write') {
        return async (key: string, bytes: Uint8Array) => {
          refuse('write', key);
          await target.write(key, bytes);
        };
      }
      if (name === 'read') {
        return async (key: string, into: Uint8Array, options?: { offset?: number }) => {
          refuse('read', key);
          await target.read(key, into, options);
        };
      }
      const value = Reflect.get(target, name, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
}
