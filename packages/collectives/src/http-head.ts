export {
  type HeadSocket,
  type HttpHead,
  parseHead,
  type ReadHead,
  readHead,
} from './sockets/http-head.js';
