/*
 * Published test vectors for the protocols Skep speaks, as facts: keys, prologue and payloads in
 * hex, and the bytes that must come out. From the sets of the projects cacophony and snow, field
 * `origin`. Messages alternate between initiator and responder; those after the third are transport
 * messages.
 */
#ifndef SKEP_TESTS_NOISE_VECTORS_H
#define SKEP_TESTS_NOISE_VECTORS_H

enum { VECTOR_MAX_MESSAGES = 8 };

struct noise_vector {
    const char *protocol;
    const char *origin;
    const char *prologue;
    const char *psk; /* NULL: none */
    const char *init_static;
    const char *init_ephemeral;
    const char *resp_static;
    const char *resp_ephemeral;
    const char *handshake_hash; /* NULL: not given */
    int message_count;
    struct {
        const char *payload;
        const char *ciphertext;
    } messages[VECTOR_MAX_MESSAGES];
};

static const struct noise_vector noise_vectors[] = {
    {
        .protocol = "Noise_XX_25519_AESGCM_BLAKE2b",
        .origin = "cacophony",
        .prologue = "4a6f686e2047616c74",
        .init_static = "e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1",
        .init_ephemeral = "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a",
        .resp_static = "4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893",
        .resp_ephemeral = "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b",
        .handshake_hash =
            "93bc73059d78d6409b76bc43e76ec5b3a6a3612d5a94c1c8f81308d06a8a049511f717a87d4d"
            "8b4abe0f12ac73d7a9047d0d4fcac80456fbff1349655c454046",
        .message_count = 6,
        .messages =
            {
                {"4c756477696720766f6e204d69736573",
                 "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c79444c7564776967"
                 "20766f6e204d69736573"},
                {"4d757272617920526f746862617264",
                 "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843cf031a86733a"
                 "890297fda30d4b471d0ceeff97124c67a7b656356862398ad52e08b423271d80894ace0fc531"
                 "c39492823f2cc8f5ebe97a7feffaae500aef491ef9815e8e024ac906b3678983549ec8"},
                {"462e20412e20486179656b",
                 "ee1c5e4fe3060d7014884f9328573c4f2e3c5593c3ef574b418e8bb397792a77db4cc497ce5d"
                 "b0c79d29afbbb78a3059d289413105384ef2738071c015c39467f6e9b61eb3e2f1db47d5f6"},
                {"4361726c204d656e676572",
                 "7ab9b6ee246550448f838ec94ab1c3cb93e7d475dc8aa7434e6462"},
                {"4a65616e2d426170746973746520536179",
                 "3d741aa91dff33adf4758746ddbf2b6afef8b64768b1d589e6bd999f7e7c7e4287"},
                {"457567656e2042f6686d20766f6e2042617765726b",
                 "6645a432705ba19de0dedaf6c9f2c4ecfa2447d48eac868bffd3ae8d899d6656a0a00c5699"},
            },
    },
    {
        .protocol = "Noise_XX_25519_AESGCM_BLAKE2b",
        .origin = "snow",
        .prologue = "5468657265206973206e6f20726967687420616e642077726f6e672e2054686572652773206f"
                    "6e6c792066756e20616e6420626f72696e672e",
        .init_static = "c1e336eda708bea820db690623669ec9cf11d1c04e39e38ddd75b1a91f021455",
        .init_ephemeral = "262917032ab93d1548e4009b883e5be6a7c48ca9907f1a0ad65763bdb2e08be0",
        .resp_static = "7864bfb6416023b79ecebdf9fe7c4f4af31ee7d1045d377308da957d71198ca9",
        .resp_ephemeral = "e07b2209c03a9229ca7db9114d084b160a4351df1ff3fd475c36720330e93e38",
        .message_count = 5,
        .messages =
            {
                {"1d5b88c780bd782551c861cad6fef96a5d8b56cf79aac508e81db36ca1d7f568",
                 "be017b212f5fffbf2ad0453b9ae1a71321c52124b976bf4b1cc1d826b735fc051d5b88c780bd"
                 "782551c861cad6fef96a5d8b56cf79aac508e81db36ca1d7f568"},
                {"184f166ae4fdacf739f12ea2359546d3a02f8734fe532d585a7d118293e7e549",
                 "9397d5f54c3c32cd8ed86bfe4b8556a484195799e2347453f28fccabe9a2ac5955024204b7ea"
                 "ce11f5690cc63492eb44b03ecf66f0454222de857cb810248187f5c8f14a9691f60f62a7aaac"
                 "5002b87c5f393425da6fc0909fd418125d8d24eceebb99e840e5c63e271e91aa1df8b4ac82ab"
                 "926f8aec7e8c5098448f1d0fd3ea"},
                {"b3c3304b2841cb97ff7b3107dba79cfb9e9b57eab4c8819952fb6cc406caaa0f",
                 "772d25ec37a7226d250b261cceffe9468e3edb279ecc8c0fdb8507cd6e08bdc9759b2a243298"
                 "8c3117c288c5c10319d1fd2f96082ff08adad38e94232effff3fcc049ee4d0667d002fcb79d6"
                 "ce0197167795718e46aeb5b93421c26e1cc512b7"},
                {"235d4ebf3873e6165f5020d79944d984fda1813d42bf2a1e29b5fa0502c1dbca",
                 "3ba43ae46e65e5b4e153d7ec0d4aa0026b02b48b5350dbf008740565723498e5e2d4aeb946c5"
                 "54edde9068ad92fac0e4"},
                {"9134423a19a596ed55cdad9db51c84d094ba1386694fe804a67533ede3c3986e",
                 "b08a55f934c537980a272f1cc008ece8367f681b96e7e6d6b350f1e40540a3249c65790a6cb5"
                 "d1a14ac612fb331a297c"},
            },
    },
    {
        .protocol = "Noise_XX_25519_ChaChaPoly_BLAKE2b",
        .origin = "cacophony",
        .prologue = "4a6f686e2047616c74",
        .init_static = "e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1",
        .init_ephemeral = "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a",
        .resp_static = "4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893",
        .resp_ephemeral = "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b",
        .handshake_hash =
            "8cf47d7b3cb5804c0109d48e8bcdbee2cbb65687d8ea2c92994ca361fb86151ad93627b98936"
            "cbb32de56e8abb21def3925011ac3e35db9cbeea73ab9a4392c2",
        .message_count = 6,
        .messages =
            {
                {"4c756477696720766f6e204d69736573",
                 "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c79444c7564776967"
                 "20766f6e204d69736573"},
                {"4d757272617920526f746862617264",
                 "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f1448088430505b6745ce6"
                 "4a5f33f0e8e3b83f11ce8802bca507f4f2d8b564dbe277e1966116e132faa2dfd70b8b077b9f"
                 "94b913df5056ae1319469b824a98d54bbaa82c325595587064f978c4b6d104f7596e6f"},
                {"462e20412e20486179656b",
                 "99579e1c1ee15e422a57ddd6b16d37087b17558e8369c18991b4b2ca3a824abf904cdcf5458b"
                 "5431a75af034ca9e9b982de039eaaf156775e2d580cd4e5ebae89c3f8cb2594b556d8a8169"},
                {"4361726c204d656e676572",
                 "fc56eea290b3f3a21aac0c70cd5787b5ee99be37d2f4d751329b55"},
                {"4a65616e2d426170746973746520536179",
                 "bb31c9da10d5639a4cdb88a12f5c61de41bbc7df09bf75d94f8184fe4157f5c68f"},
                {"457567656e2042f6686d20766f6e2042617765726b",
                 "f6199cadb152fb27f82be0a0891ec76a33598ae92a46cab2fb5a8ed5bf48b7f267f8370af7"},
            },
    },
    {
        .protocol = "Noise_XX_25519_ChaChaPoly_BLAKE2b",
        .origin = "snow",
        .prologue = "5468657265206973206e6f20726967687420616e642077726f6e672e2054686572652773206f"
                    "6e6c792066756e20616e6420626f72696e672e",
        .init_static = "842752777821bd4c9a6a84c777cb9028ba2446c864e035c8d380632dca3a7702",
        .init_ephemeral = "5dfce6be0b767fc60a51e1d627711c67d63e97115cb3957a64a66919747ea47c",
        .resp_static = "8885e7006b27a44bec4a6e7bfcc37032a3564a73bf9588585bd1166829d80d8a",
        .resp_ephemeral = "9c012e056ed37994a4bfb09f57a7505bf44c07e9784c3c2bcefd8880b2d85e21",
        .message_count = 5,
        .messages =
            {
                {"bcb708376354e0dc837fc3f7e0e9c8c59849fd907a129a3c0afde64e79d1ac09",
                 "50a7da541baa50d563e3fd3526f53e9b7e4af8083a4180b5d1f8cd49fbe30518bcb708376354"
                 "e0dc837fc3f7e0e9c8c59849fd907a129a3c0afde64e79d1ac09"},
                {"77783888d07aa30dfeccf96d8da0a293546232bc8a460b5fbca479e3da54d3b2",
                 "6b0ae570deada82b6f3071c87bd361014c34f8d15fee49ed0078f38a9c05bb703c2eb46ccc27"
                 "34a9c07555b85d6f0b5ae29f24aaa2c351d815acd2e1de7770344339d0d854daf5a4468b189c"
                 "af7ff643d6c5645e9e7fd5edcad6755ea0a01f51f552650ab99b7a0eba09f64b9dc0737f5756"
                 "688682897c0912890a6ec56d72f8"},
                {"420d0154f4e26a4224c201f3ecceddc06eb8896b78386978fb25b21dd276c6fb",
                 "386d9e2549dcb9a016db7e05f45c19d2c4fd4e7a61d1c06dbd01d21012d448b34761826aa7b3"
                 "fc8d0c5cc73d487c1f19ac29de837b4ccd361603f03d12f8971ae0534fbd8096fd5bc2c7bdc7"
                 "7026207623514afa5804d07a3b0c316f9e5a9c12"},
                {"58f929d4d8eda457fb01b3a09bb6391aac0d93477df9e3042355741747744571",
                 "c81ba3d22336cd78d64ff9e2161d339db9fd3a5407a3fb594fb7a59d718e83c6054b1002721e"
                 "63ffb2a2d2d8bfd670bc"},
                {"c86af330a6b59de9d7ead76260204ef7e897a1323bdc0a9c5ea4450556ed0bf6",
                 "1207c87bc8ec9b6d5db3a3d3ed5caab43c98e71492a424b7d7302ea8313d1b0e3644c9b3c479"
                 "a80cdb3da1e92466b8ac"},
            },
    },
    {
        .protocol = "Noise_XXpsk3_25519_AESGCM_BLAKE2b",
        .origin = "cacophony",
        .prologue = "4a6f686e2047616c74",
        .psk = "54686973206973206d7920417573747269616e20706572737065637469766521",
        .init_static = "e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1",
        .init_ephemeral = "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a",
        .resp_static = "4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893",
        .resp_ephemeral = "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b",
        .handshake_hash =
            "e5b822a41359ba23258f1ccc02d2ee978c90352916b1c8b6334d16cc5f9f0a1b2604b99897a4"
            "b0262e64561e0fc4428033a5a0b8922c00105b98b3c8a264fd60",
        .message_count = 6,
        .messages =
            {
                {"4c756477696720766f6e204d69736573",
                 "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c79441a0e6699152d"
                 "f30e64f4b6f837d14a2637d11f8d7aee7c0ea249dfe0b3bb12d4"},
                {"4d757272617920526f746862617264",
                 "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843e64bfb36e532"
                 "b1b83415d4d9eeae41183f9115b8a4a9a9b86fd8d8755da5f627aa633ae1065631b282e5b160"
                 "ece8f2901adb7b7e96e1a656dab14a7b2c70202d649dab622c9cf613218f6d8fe01629"},
                {"462e20412e20486179656b",
                 "cb93fef33078034e315683070c27007f40c2e3a34aa89d942cf0a1b51d2b516a4ef34ec5f53c"
                 "51c9904c32d0c83fab4c686bf72f9c63251ff96f3efea03a4dad1e0331dfa7feb5915c13b4"},
                {"4361726c204d656e676572",
                 "44970d8d4a48d23bb9df738f2f5999229dcd8414071b58dda13da2"},
                {"4a65616e2d426170746973746520536179",
                 "ceac947046dca00efd5642fd8297729740d01d48ffce8b467dd6e2823d9e673f2c"},
                {"457567656e2042f6686d20766f6e2042617765726b",
                 "9df434e314412ea96c7958a07bc4ef2172cd998ed9ff8a6f078fec4786c3a41ae59fe0fed4"},
            },
    },
    {
        .protocol = "Noise_XXpsk3_25519_ChaChaPoly_BLAKE2b",
        .origin = "cacophony",
        .prologue = "4a6f686e2047616c74",
        .psk = "54686973206973206d7920417573747269616e20706572737065637469766521",
        .init_static = "e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1",
        .init_ephemeral = "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a",
        .resp_static = "4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893",
        .resp_ephemeral = "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b",
        .handshake_hash =
            "46b5997dfa51492ae9be5b611748455e83aebdbc2ea3c47d264ec6dd408cc076e962ff056890"
            "c60398fe3e7a430bbe057f34383a84df9ff99391266dcfd638b0",
        .message_count = 6,
        .messages =
            {
                {"4c756477696720766f6e204d69736573",
                 "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c79440aa831d1e3bb"
                 "d16bd7ffda87e9f7b6eeca2510006499a573ac27af3392ed1b69"},
                {"4d757272617920526f746862617264",
                 "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f14480884381a78489d56c"
                 "9e2ac962826f25684980b25244dbfd505b7d903a94d4f4fd84004a1c7fbe94d686bc4c1f6725"
                 "9364f6f2a41cb40bf5198b9b3975be2cdd49d3e065a554e12c477d82029fabc6555bc1"},
                {"462e20412e20486179656b",
                 "291dfeff6eff386e29adb0bdbd5a1ae9e09de4449c8695d109adcb63e80e489555792a3e9150"
                 "eff75d6d45571f824ed231173cb66e31e7da914241f86d0cbb678335ffe768a7445d2f5bc1"},
                {"4361726c204d656e676572",
                 "6579dd60eb5e6a8b29dd60004289f5d3c2f69fcdbf683a869f59a8"},
                {"4a65616e2d426170746973746520536179",
                 "24715fd39c3c7606e81b26e69e47b54d043d9d87c512f9417bae51ab48ebb17722"},
                {"457567656e2042f6686d20766f6e2042617765726b",
                 "e49194a013d873712318643acbf0e3851086326bb168c500a766439ff543a7a1e2deb3215c"},
            },
    },
};

#endif
