// The default hook: exact values, added in rank order.

import type { ReduceDType } from '@shardweave/dtypes';
import type { CommunicationHook } from './communication-hook.js';

/** Makes one all-reduce per bucket, in the bucket's dtype. */
export const allReduceHook: CommunicationHook = {
  name: 'allReduce',
  isSerial: false,
  reduce: ({ bytes, group, dtype, tag, identity }) =>
    group.allReduce(bytes, bytes, {
      dtype: dtype as ReduceDType,
      op: 'sum',
      ...(dtype === 'f32' ? { wire: 'exact' } : {}),
      tag,
      identity,
    }),
};
