// The same sums for parts that lie in a memory of several threads. Nothing is reserved here: each
// thread has an instance of its own, and they would all reserve the same place.

export { accumulate, combine, finish, start } from './index';
