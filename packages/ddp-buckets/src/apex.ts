// What users of apex alone ask for beside the wrapper: reductions that the program makes itself,
// and the options that only apex has.

export { type NaiveAllReduceOptions, naiveAllReduce } from './apex/naive-all-reduce.js';
export { Reducer, type ReducerOptions, type TensorTree } from './apex/reducer.js';
export type { ApexOptions } from './options.js';
