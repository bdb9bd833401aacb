// What needs Node's file system.

export { shardDirectory } from './shards/shard-directory.js';
