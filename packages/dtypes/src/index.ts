export { byteSize, type DType, isFloat } from './dtype.js';
