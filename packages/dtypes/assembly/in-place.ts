// These are the same sums for parts that lie in a memory of several threads. Nothing is reserved
// here, since each thread has an instance of its own, and all of them would reserve the same place.

export { accumulate, combine, finish, start } from './index';
