// What elastic jobs are made of on Node and in pages alike, which join them in ways of their own.

export { EpochOverError } from './errors.js';
export type {
  CoordinatorChange,
  CoordinatorOptions,
  CoordinatorStatus,
  Departure,
} from './membership/coordinator-options.js';
export type { Epoch, EpochMember, Member } from './membership/member.js';
export { MembershipError } from './membership/membership-error.js';
export type { MemberEdge } from './membership/messages.js';
export { MemoryElasticJob, type MemoryElasticOptions } from './transports/memory-elastic.js';
export {
  type JoinElasticShmOptions,
  joinElasticShm,
} from './transports/shm/elastic/join-elastic-shm.js';
export {
  ShmElasticJob,
  type ShmElasticOptions,
  type ShmMemberHandle,
} from './transports/shm/elastic/shm-elastic-job.js';
export type { ElasticJobOptions } from './transports/ws/elastic/join-elastic-over.js';
