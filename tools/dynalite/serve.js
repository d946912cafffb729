// A server of DynamoDB's protocol on a free port of loopback, in memory. It says where it listens.
const server = require('dynalite')({ createTableMs: 0 })

server.listen(0, '127.0.0.1', () => console.log(`listens on 127.0.0.1:${server.address().port}`))
